// Whole files: read in place, written so that nobody ever sees half of one.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace ropepool::cli {

// The bytes of a file, or of standard input for "-". They may be written: the file never changes, since a regular file is
// mapped privately, which copies the pages that are written and no others.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  std::span<std::byte> bytes() const { return {data_, size_}; }
  const std::string& name() const { return name_; }  // for messages
  // Whether `path` is this very file, under whatever name.
  bool is(const std::string& path) const;

 private:
  void read_stream(int descriptor);

  std::string name_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  bool mapped_ = false;
  unsigned long long device_ = 0, inode_ = 0;
};

std::string text_of(const InputFile& file);
// A config.json: `path`, or inside of it where that is a folder.
std::string config_path(const std::string& path);

// A file that is written under a temporary name beside its own and takes its own with commit(). Without that, also when a
// signal ends the program, it is removed and what stood under its name still stands. A path that is no regular file, such as
// /dev/null, is written as it is. One at a time.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  void write(std::span<const std::byte> bytes);
  void commit();

 private:
  [[noreturn]] void fail(int error) const;

  std::string path_, temporary_;  // no temporary where the path itself is written
  int descriptor_ = -1;
};

// Signals that end the program remove an unfinished output first. A mapped file that another program cuts short raises SIGBUS:
// it ends the program with a message.
void handle_signals();

}  // namespace ropepool::cli
