// ropepool doctor: what this build is and what it finds on this machine, to be pasted into a bug report.
#include "commands.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__GLIBC__)
#include <gnu/libc-version.h>
#endif
#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ropepool/c_api.h>
#include <ropepool/ropepool.h>

#include "core/devices.h"
#include "core/environment.h"
#include "terminal.h"

extern char** environ;

namespace ropepool::cli {
namespace {

std::string trimmed(std::string text) {
  const std::size_t end = text.find_last_not_of(" \t\r\n");
  text.resize(end == std::string::npos ? 0 : end + 1);
  text.erase(0, text.find_first_not_of(" \t\""));
  return text;
}

// The value of the first line of `path` that begins with `key`, behind `separator`.
std::string value_in(const char* path, std::string_view key, char separator) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    if (const std::size_t at = line.find(separator); at != std::string::npos) {
      std::string value = trimmed(line.substr(at + 1));
      if (!value.empty() && value.back() == '"') value.pop_back();
      return value;
    }
  }
  return "";
}

}  // namespace

std::string cpu_model() {
#if defined(__linux__)
  std::string model = value_in("/proc/cpuinfo", "model name", ':');
  // Arm has numbers only.
  if (model.empty()) model = value_in("/proc/cpuinfo", "CPU part", ':');
#elif defined(__APPLE__)
  char text[256] = "";
  std::size_t size = sizeof text;
  std::string model = sysctlbyname("machdep.cpu.brand_string", text, &size, nullptr, 0) == 0 ? text : "";
#else
  std::string model;
#endif
  return model.empty() ? "unknown" : model;
}

namespace {

std::string system_name() {
  utsname name{};
  uname(&name);
  const std::string distribution = value_in("/etc/os-release", "PRETTY_NAME=", '=');
  return fmt::format("{}{}{} {} {}", distribution, distribution.empty() ? "" : ", ", name.sysname, name.release, name.machine);
}

std::string libc_name() {
#if defined(__GLIBC__)
  return fmt::format("glibc {}", gnu_get_libc_version());
#else
  return "not glibc";
#endif
}

std::string compiler_name() {
#if defined(__clang__)
  return "clang " __VERSION__;
#elif defined(__GNUC__)
  return "gcc " __VERSION__;
#else
  return "unknown";
#endif
}

std::vector<std::string> devices() {
  std::vector<std::string> found;
  if (has_kernels(DeviceType::cpu)) found.emplace_back("cpu");
  if (has_kernels(DeviceType::cuda)) found.emplace_back("cuda");
  if (has_kernels(DeviceType::metal)) found.emplace_back("metal");
  return found;
}

std::vector<std::string> environment_variables() {
  std::vector<std::string> found;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::string_view(*variable).starts_with("ROPEPOOL_")) found.emplace_back(*variable);
  }
  return found;
}

// What `program` prints, within ten seconds; "" where it can't be run, fails or takes longer.
std::string output_of(const std::string& program, const char* code) {
  int ends[2];
  if (pipe(ends) != 0) return "";
  for (const int end : ends) fcntl(end, F_SETFD, FD_CLOEXEC);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  const char* arguments[] = {program.c_str(), "-c", code, nullptr};
  pid_t child = 0;
  const int failure = posix_spawnp(&child, program.c_str(), &actions, nullptr, const_cast<char**>(arguments), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string text;
  bool in_time = failure == 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (in_time) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    pollfd ready{ends[0], POLLIN, 0};
    const int count = left > 0 ? poll(&ready, 1, static_cast<int>(left)) : 0;
    if (count < 0 && errno == EINTR) continue;
    in_time = count > 0;
    char buffer[4096];
    const ssize_t size = in_time ? read(ends[0], buffer, sizeof buffer) : 0;
    if (size <= 0) break;
    text.append(buffer, static_cast<std::size_t>(size));
  }
  close(ends[0]);
  if (failure != 0) return "";
  int status = 0;
  for (;;) {  // it may have closed its output and go on
    in_time = in_time && std::chrono::steady_clock::now() < deadline;
    if (!in_time) kill(child, SIGKILL);
    const pid_t ended = waitpid(child, &status, in_time ? WNOHANG : 0);
    if (ended > 0 || (ended < 0 && errno != EINTR)) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return in_time && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? trimmed(text) : "";
}

// The Python beside this program, as in a virtual environment that was not activated; else the one on PATH.
std::string python_program() {
  std::error_code failure;
  char path[4096];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof path);
  if (size > 0) {
    const std::string_view self(path, static_cast<std::size_t>(size));
    std::string beside = std::string(self.substr(0, self.rfind('/') + 1)) + "python3";
    if (access(beside.c_str(), X_OK) == 0) return beside;
  }
  return "python3";
}

std::string python_front_end(const std::string& program) {
  // Not the folder ropepool/ of wherever this is run.
  const std::string text =
      output_of(program,
                "import sys; sys.path = [p for p in sys.path if p]\n"
                "python = 'Python ' + sys.version.split()[0]\n"
                "try:\n"
                "  import ropepool\n"
                "  print(getattr(ropepool, '__version__', 'of unknown version'), 'at', ropepool.__file__, 'for', python)\n"
                "except ImportError as error:\n"
                "  print('not found:', error, 'for', python)\n"
                "except Exception as error:\n"
                "  print('fails:', error, 'for', python)\n");
  return text.empty() ? "not found: no Python that runs" : text;
}

}  // namespace

Exit doctor(const DoctorOptions& options) {
  const Result<std::string> target = simd_target();
  const Result<void> environment = check_environment();
  const std::vector<std::string> variables = environment_variables();
  const std::string python = python_program();

  Json json;
  json["ok"] = environment.ok();
  json["problem"] = environment.ok() ? "" : environment.error().message();
  json["version"] = version();
  json["simd_target"] = target ? target.value() : "";
  json["simd_targets"] = simd_targets();
  json["compiled_simd_targets"] = compiled_simd_targets();
  json["devices"] = devices();
  json["cpu"] = cpu_model();
  json["physical_cores"] = physical_cores();
  json["logical_cpus"] = std::thread::hardware_concurrency();
  json["threads"] = get_num_threads();
  json["environment"] = variables;
  json["front_ends"] = {{"C++", fmt::format("{} (in this tool)", version())},
                        {"C", fmt::format("{} (in this tool)", ropepool_version())},
                        {"command line", version()},
                        {"Python", python_front_end(python)}};
  json["compiler"] = compiler_name();
  json["libc"] = libc_name();
  json["system"] = system_name();
  if (options.json) {
    print_json(json);
  } else {
    const Terminal terminal = Terminal::standard_output();
    std::string text;
    const auto line = [&](std::string_view name, std::string_view value) {
      text += fmt::format("{:<22} {}\n", name, value.empty() ? "none" : value);
    };
    const auto list = [](const Json& values) {
      return fmt::format("{}", fmt::join(values.get<std::vector<std::string>>(), " "));
    };
    line("ropepool", version());
    line("SIMD target", target ? json["simd_target"].get<std::string>() : terminal.red("none: see the problem below"));
    line("  this CPU runs", list(json["simd_targets"]));
    line("  compiled in", list(json["compiled_simd_targets"]));
    line("devices", list(json["devices"]));
    line("CPU", json["cpu"].get<std::string>());
    line("cores",
         fmt::format("{} physical for this process, {} logical", physical_cores(), std::thread::hardware_concurrency()));
    line("threads", fmt::format("{} at most", get_num_threads()));
    line("environment", list(json["environment"]));
    for (const auto& [name, value] : json["front_ends"].items()) line("front-end " + name, value.get<std::string>());
    line("compiler", compiler_name());
    line("libc", libc_name());
    line("system", system_name());
    text += environment.ok()
                ? "\nIn a bug report paste all of the above, the command or code that fails, and its whole output.\n"
                : "";
    print(text);
  }
  if (environment) return Exit::ok;
  complain(environment.error().message());
  return Exit::machine;
}

}  // namespace ropepool::cli
