// How a command ends.
#pragma once

#include <stdexcept>
#include <string>

#include <ropepool/result.h>

namespace ropepool::cli {

enum class Exit : int {
  ok = 0,
  refused = 1,       // the contract refuses the call
  usage = 2,         // flags that make no sense
  file = 3,          // a file can't be read or written, or is malformed
  differs = 4,       // results are not as expected
  nothing_fits = 5,  // `explain` knows no refusal that the text speaks of
  machine = 6,       // out of memory, or a ROPEPOOL_ variable with a value that makes no sense
};

// Ends a command with a message on standard error.
class Failure : public std::runtime_error {
 public:
  Failure(Exit exit, const std::string& message) : std::runtime_error(message), exit_(exit) {}
  Exit exit() const { return exit_; }

 private:
  Exit exit_;
};

inline Exit exit_for(const Error& error) { return error.kind() == Error::Kind::refusal ? Exit::refused : Exit::machine; }

}  // namespace ropepool::cli
