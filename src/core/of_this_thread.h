// What a thread keeps from one call to the next.
#pragma once

#include <cstddef>
#include <new>

namespace ropepool {

// The calling thread's own T. Calls may come when the thread's objects are gone already, as from an exit handler: they find a
// new one, which is never destroyed. Nothing is allocated here.
template <class T>
T& of_this_thread() noexcept {
  static thread_local bool ended = false;  // trivial to destroy, so it is there for as long as the thread runs
  struct Owner {
    T value;
    ~Owner() { ended = true; }
  };
  if (!ended) [[likely]] {
    static thread_local Owner owner{};
    return owner.value;
  }
  alignas(T) static thread_local std::byte memory[sizeof(T)];
  static thread_local T* late = nullptr;
  if (late == nullptr) late = new (memory) T();
  return *late;
}

}  // namespace ropepool
