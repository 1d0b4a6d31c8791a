// The floating-point modes that results are defined by.
#pragma once

#include <cfenv>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace ropepool {

// Rounds to nearest and keeps denormals while it lives, whatever the thread had set (torch.set_flush_denormal, -ffast-math),
// which comes back afterwards.
class DefaultFloatModes {
 public:
  DefaultFloatModes(const DefaultFloatModes&) = delete;
  DefaultFloatModes& operator=(const DefaultFloatModes&) = delete;

#if defined(__SSE__)
  DefaultFloatModes() : saved_(_mm_getcsr()) {
    if ((saved_ & ~kFlags) != kDefault) _mm_setcsr(kDefault);
  }
  ~DefaultFloatModes() {
    if ((saved_ & ~kFlags) != kDefault) _mm_setcsr(saved_);
  }

 private:
  static constexpr unsigned int kFlags = 0x3F;      // of exceptions that occurred
  static constexpr unsigned int kDefault = 0x1F80;  // all exceptions masked, to nearest, denormals kept
  unsigned int saved_;
#else
  DefaultFloatModes() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatModes() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
#endif
};

}  // namespace ropepool
