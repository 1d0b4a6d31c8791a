// ROPEPOOL_TARGET and ROPEPOOL_NUM_THREADS, which are read once at start: each case in a process of its own.
#include <cstdio>
#include <map>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include <ropepool/runtime.h>

namespace ropepool::test {
namespace {

std::string output_of(const std::string& environment, const std::string& mode) {
  const std::string command = "env -u ROPEPOOL_TARGET -u ROPEPOOL_NUM_THREADS " + environment + " " ROPEPOOL_PROBE " " + mode;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "no pipe";
  std::string text;
  char buffer[4096];
  for (std::size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, n);
  const int status = pclose(pipe);
  return status == 0 ? text : text + "status " + std::to_string(status);
}

void expect_line(const std::string& output, const std::string& line) {
  EXPECT_NE(("\n" + output).find("\n" + line + "\n"), std::string::npos) << "no line '" << line << "' in:\n" << output;
}
void expect_text(const std::string& output, const std::string& text) {
  EXPECT_NE(output.find(text), std::string::npos) << "no '" << text << "' in:\n" << output;
}

TEST(Environment, NothingSet) {
  const std::string output = output_of("", "environment");
  expect_line(output, "op: 0 ");
  expect_line(output, "c: 0 ");
  expect_line(output, "written: 1");
  expect_line(output, "check_environment: 0 ");
  expect_line(output, "target: " + simd_targets().front());
}

TEST(Environment, EveryUsableTargetCanBeForced) {
  for (const std::string& target : simd_targets()) {
    const std::string output = output_of("ROPEPOOL_TARGET=" + target, "environment");
    expect_line(output, "op: 0 ");
    expect_line(output, "target: " + target);
  }
}

TEST(Environment, ATargetThatThereIsNotIsAnErrorOfTheFirstCall) {
  for (const char* target : {"NONSENSE", "SSSE3", "avx2", "AVX", "' AVX2'", "'AVX2 '", "AVX2,SSE4"}) {
    const std::string output = output_of(std::string("ROPEPOOL_TARGET=") + target, "environment");
    expect_text(output, "op: -2 ROPEPOOL_TARGET is ");
    expect_text(output, "c: -2 ROPEPOOL_TARGET is ");
    expect_text(output, "check_environment: -2 ROPEPOOL_TARGET is ");
    expect_text(output, "target: error ROPEPOOL_TARGET is ");
    expect_text(output, simd_targets().back());  // says what there is
    expect_line(output, "written: 0");
  }
}

TEST(Environment, ATargetThatThisCpuCannotRun) {
  std::set<std::string> others;
  for (const std::string& target : compiled_simd_targets()) others.insert(target);
  for (const std::string& target : simd_targets()) others.erase(target);
  if (others.empty()) GTEST_SKIP() << "this CPU runs all that was compiled";
  const std::string output = output_of("ROPEPOOL_TARGET=" + *others.begin(), "environment");
  expect_text(output, "op: -2 ROPEPOOL_TARGET is " + *others.begin() + ", which this CPU can't run");
  expect_line(output, "written: 0");
}

TEST(Environment, NumbersOfThreads) {
  for (const int threads : {1, 2, 16, 1024}) {
    const std::string output = output_of("ROPEPOOL_NUM_THREADS=" + std::to_string(threads), "environment");
    expect_line(output, "op: 0 ");
    expect_line(output, "threads: " + std::to_string(threads));
  }
}

TEST(Environment, ANumberOfThreadsThatMakesNoSenseIsAnErrorOfTheFirstCall) {
  for (const char* threads : {"0", "-1", "1025", "abc", "4x", "' 4'", "'4 '", "4.0", "+4", "0x4", "99999999999999999999"}) {
    const std::string output = output_of(std::string("ROPEPOOL_NUM_THREADS=") + threads, "environment");
    expect_text(output, "op: -2 ROPEPOOL_NUM_THREADS must be ");
    expect_text(output, "c: -2 ROPEPOOL_NUM_THREADS must be ");
    expect_text(output, "check_environment: -2 ROPEPOOL_NUM_THREADS must be ");
    expect_line(output, "written: 0");
  }
}

TEST(Environment, AnEmptyValueIsNone) {
  const std::string output = output_of("ROPEPOOL_TARGET= ROPEPOOL_NUM_THREADS=", "environment");
  expect_line(output, "op: 0 ");
  expect_line(output, "target: " + simd_targets().front());
}

// The same bits from every target with fused multiply-add; those without form a second class.
TEST(SimdTargets, OfOneClassGiveTheSameBits) {
  const std::set<std::string> unfused = {"SSE2", "SSE4", "EMU128", "SCALAR"};
  std::map<bool, std::pair<std::string, std::string>> first;  // of each class: a target and what it gave
  for (const std::string& target : simd_targets()) {
    const std::string output = output_of("ROPEPOOL_TARGET=" + target, "results");
    EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 6) << output;
    const auto [it, added] = first.try_emplace(unfused.contains(target), target, output);
    EXPECT_EQ(output, it->second.second) << target << " and " << it->second.first << " differ";
  }
}

}  // namespace
}  // namespace ropepool::test
