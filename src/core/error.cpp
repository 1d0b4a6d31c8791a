#include <ropepool/result.h>

#include <fmt/format.h>

#include <ropepool/catalog.h>

namespace ropepool {

Error::Error(Refusal refusal, Finding finding) : kind_(Kind::refusal), refusal_(refusal), finding_(std::move(finding)) {
  if (finding_.hint.empty()) {
    const std::string_view solutions = catalog_entry(refusal).solutions;
    finding_.hint = solutions.substr(0, solutions.find('\n'));
  }
}

Error::Error(Kind kind, std::string message) : kind_(kind) { finding_.summary = std::move(message); }

// Short enough to need no memory.
Error Error::out_of_memory() { return Error(Kind::out_of_memory, "out of memory"); }
Error Error::runtime(std::string message) { return Error(Kind::runtime, std::move(message)); }

std::optional<Refusal> Error::refusal() const {
  if (kind_ == Kind::refusal) return refusal_;
  return std::nullopt;
}

int Error::number() const {
  switch (kind_) {
    case Kind::refusal:
      return static_cast<int>(refusal_);
    case Kind::out_of_memory:
      return -1;
    case Kind::runtime:
      break;
  }
  return -2;
}

std::string_view Error::code() const { return kind_ == Kind::refusal ? catalog_entry(refusal_).code : ""; }
std::string_view Error::name() const { return kind_ == Kind::refusal ? catalog_entry(refusal_).name : ""; }
std::string_view Error::url() const { return kind_ == Kind::refusal ? catalog_entry(refusal_).url : ""; }

std::string Error::message() const {
  if (kind_ != Kind::refusal) return finding_.summary;
  std::string text = finding_.summary;
  if (!finding_.cause.empty()) text += "\ncause: " + finding_.cause;
  return text + fmt::format("\nmend:  {}\n{} {}: ropepool explain {}", finding_.hint, code(), name(), code());
}

std::string Error::explain() const { return kind_ == Kind::refusal ? ropepool::explain(refusal_) : message(); }

}  // namespace ropepool
