#include "files.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "failure.h"

namespace ropepool::cli {
namespace {

// What a signal handler may have to remove; "" for nothing.
char unfinished[PATH_MAX] = "";

void remove_unfinished() {
  if (unfinished[0] != '\0') unlink(unfinished);
}

extern "C" void end_by_signal(int signal_number) {
  remove_unfinished();
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

extern "C" void end_by_bus_error(int) {
  remove_unfinished();
  constexpr char kText[] = "ropepool: an input file was cut short by another program, or can't be read from its disk\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, kText, sizeof kText - 1);
  _exit(static_cast<int>(Exit::file));
}

std::string reason(int error) { return std::generic_category().message(error); }

[[noreturn]] void cannot_read(const std::string& name, int error) {
  throw Failure(Exit::file, fmt::format("cannot read {}: {}", name, reason(error)));
}

}  // namespace

InputFile::InputFile(const std::string& path) : name_(path == "-" ? "standard input" : path) {
  const int descriptor = path == "-" ? dup(STDIN_FILENO) : open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) cannot_read(name_, errno);
  struct Closer {
    int descriptor;
    ~Closer() { close(descriptor); }
  } closer{descriptor};
  struct stat status;
  if (fstat(descriptor, &status) != 0) cannot_read(name_, errno);
  device_ = static_cast<unsigned long long>(status.st_dev);
  inode_ = static_cast<unsigned long long>(status.st_ino);
  if (!S_ISREG(status.st_mode) || lseek(descriptor, 0, SEEK_CUR) != 0) {
    read_stream(descriptor);
  } else if (status.st_size > 0) {
    size_ = static_cast<std::size_t>(status.st_size);
    // No swap is set aside for pages that will never be written: a file may be larger than memory.
    void* mapping = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, descriptor, 0);
    if (mapping == MAP_FAILED) cannot_read(name_, errno);
    data_ = static_cast<std::byte*>(mapping);
    mapped_ = true;
  }
}

void InputFile::read_stream(int descriptor) {
  std::size_t capacity = 0;
  for (;;) {
    if (size_ == capacity) {
      capacity = std::max<std::size_t>(2 * capacity, std::size_t{1} << 20);
      // realloc moves large blocks by their page table, without a copy.
      void* larger = std::realloc(data_, capacity);
      if (larger == nullptr) {
        std::free(data_);
        throw std::bad_alloc();
      }
      data_ = static_cast<std::byte*>(larger);
    }
    const ssize_t count = read(descriptor, data_ + size_, capacity - size_);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int error = errno;
      std::free(data_);
      cannot_read(name_, error);
    }
    if (count == 0) return;
    size_ += static_cast<std::size_t>(count);
  }
}

InputFile::~InputFile() {
  if (mapped_) {
    munmap(data_, size_);
  } else {
    std::free(data_);
  }
}

bool InputFile::is(const std::string& path) const {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && static_cast<unsigned long long>(status.st_dev) == device_ &&
         static_cast<unsigned long long>(status.st_ino) == inode_;
}

std::string text_of(const InputFile& file) { return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}; }

std::string config_path(const std::string& path) {
  struct stat status;
  const bool is_folder = path != "-" && stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
  return is_folder ? path + "/config.json" : path;
}

OutputFile::OutputFile(const std::string& path) : path_(path) {
  // A link stays one: what it points to is replaced.
  if (char* target = realpath(path.c_str(), nullptr)) {
    path_ = target;
    std::free(target);
  }
  struct stat status;
  const bool replaces = stat(path_.c_str(), &status) == 0;
  if (replaces && !S_ISREG(status.st_mode)) {
    descriptor_ = open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  } else {
    const std::size_t slash = path_.rfind('/');
    const std::size_t name = slash == std::string::npos ? 0 : slash + 1;
    // A killed program may have left such a name behind.
    for (int attempt = 0; attempt < 100 && temporary_.empty(); ++attempt) {
      const std::string temporary =
          fmt::format("{}.{}.{}.{}.tmp", path_.substr(0, name), path_.substr(name), getpid(), attempt);
      if (temporary.size() >= sizeof unfinished) fail(ENAMETOOLONG);
      descriptor_ = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (descriptor_ < 0 && errno == EEXIST) continue;
      if (descriptor_ < 0) fail(errno);
      temporary_ = temporary;
      if (replaces) fchmod(descriptor_, status.st_mode & 07777);  // else what was private is so no more
      std::memcpy(unfinished, temporary_.c_str(), temporary_.size() + 1);
    }
  }
  if (descriptor_ < 0) fail(errno);
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    // Linux writes 2 GiB at once at most, macOS refuses more.
    const ssize_t count = ::write(descriptor_, bytes.data(), std::min(bytes.size(), std::size_t{1} << 30));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(errno);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void OutputFile::commit() {
  // Some file systems tell only here that the disk is full.
  if (close(std::exchange(descriptor_, -1)) != 0) fail(errno);
  if (temporary_.empty()) return;
  if (rename(temporary_.c_str(), path_.c_str()) != 0) fail(errno);
  unfinished[0] = '\0';
  temporary_.clear();
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
  unfinished[0] = '\0';
}

void OutputFile::fail(int error) const { throw Failure(Exit::file, fmt::format("cannot write {}: {}", path_, reason(error))); }

void handle_signals() {
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) {
    // nohup sets SIGHUP to be ignored: so be it.
    if (signal(signal_number, end_by_signal) == SIG_IGN) signal(signal_number, SIG_IGN);
  }
  signal(SIGBUS, end_by_bus_error);
  // A reader that goes away, or a file over its limit, is seen when writing.
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
}

}  // namespace ropepool::cli
