// Memory between pages that must not be touched: a stray access ends the process.
#pragma once

#include <cstddef>
#include <cstdint>

#include <sys/mman.h>
#include <unistd.h>

#include <ropepool/tensor.h>

namespace ropepool::test {

// Pages of zeros, reserved only: what is not touched takes no memory. data() is null where the system has no room.
class Pages {
 public:
  explicit Pages(std::size_t bytes) : bytes_(bytes) {
    void* mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return;
    data_ = static_cast<std::byte*>(mapped);
    madvise(data_, bytes_, MADV_NOHUGEPAGE);  // so that one page is what one write takes
  }
  ~Pages() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  static std::size_t page_size() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

 private:
  std::size_t bytes_;
  std::byte* data_ = nullptr;
};

// `bytes`, a multiple of the page size, with a forbidden page right before and a few right behind.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes) : pages_(bytes + 17 * Pages::page_size()), bytes_(bytes) {
    mprotect(pages_.data(), Pages::page_size(), PROT_NONE);
    mprotect(data() + bytes, 16 * Pages::page_size(), PROT_NONE);
  }
  std::byte* data() const { return pages_.data() + Pages::page_size(); }
  std::size_t size() const { return bytes_; }

 private:
  Pages pages_;
  std::size_t bytes_;
};

}  // namespace ropepool::test
