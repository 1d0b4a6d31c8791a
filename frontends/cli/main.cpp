// The command line tool. Flags and their help are here, what a command does is in the file of its name.
//
// Exit codes: 0 done; 1 the contract refuses the call; 2 flags that make no sense; 3 a file can't be read or written, or is
// malformed; 4 results are not as expected; 5 `explain` knows no refusal that fits; 6 out of memory, or a ROPEPOOL_ variable
// with a value that makes no sense.
#include <cstdio>
#include <exception>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <ropepool/runtime.h>

#include "commands.h"
#include "files.h"
#include "terminal.h"

namespace ropepool::cli {
namespace {

constexpr char kExitCodes[] =
    "Exit codes: 0 done; 1 the call is refused; 2 flags that make no sense; 3 a file can't be read or written, or is\n"
    "malformed; 4 results are not as expected; 5 `explain` knows no refusal that fits; 6 out of memory, or a ROPEPOOL_\n"
    "variable with a value that makes no sense.\n";

constexpr char kMain[] =
    "Examples:\n"
    "  ropepool run step.safetensors                 run the op on a file's tensors, with the time it takes\n"
    "  ropepool check step.safetensors               would it be refused, and why\n"
    "  ropepool explain RP006                        what a refusal means and how to mend it\n"
    "  python serve.py 2>&1 | ropepool explain -     the same, found in a log\n"
    "  ropepool rope config.json                     which rope a model's config means\n"
    "  ropepool bench                                how fast it is here, beside copies of the same bytes\n"
    "  ropepool doctor                               what to paste in a bug report\n"
    "`ropepool COMMAND --help` says more.\n\n"
    "Environment: ROPEPOOL_NUM_THREADS, how many threads an op may use; ROPEPOOL_TARGET, the SIMD target, by a name that\n"
    "`ropepool doctor` lists; NO_COLOR.\n\n";

constexpr char kRun[] =
    "The file holds these tensors:\n"
    "  q                [num_tokens, num_qo_heads, head_dim]  F32, F16 or BF16, one for all five\n"
    "  k, v             [num_tokens, num_kv_heads, head_dim]\n"
    "  k_pool, v_pool   [num_slots, num_kv_heads, head_dim]\n"
    "  positions, slots [num_tokens]                          I32 or I64\n"
    "  rope_sets        [num_tokens]                          with a rope of several sets; else left out\n"
    "and in its metadata rope_base, and as needed head_dim, num_qo_heads, num_kv_heads and angles. Flags win; head_dim and\n"
    "the head counts that are in neither come from the shapes of q and k. --rope takes the rope of a model's config instead\n"
    "of rope_base, as `ropepool rope` shows it; with M-RoPE positions are [axes, num_tokens]. Others of its tensors are not\n"
    "read, but these are compared with the results: expected.q_rot, expected.k_rot, expected.k_pool, expected.v_pool. The\n"
    "file is never changed. OUT gets q_rot, k_rot, k_pool and v_pool, and stands under its name only when complete.\n\n"
    "A result may differ from what is expected by this part of the length of its pair of lanes (i and i + head_dim/2,\n"
    "or those that the rope turns together):\n"
    "  float32   1e-6: on both sides three roundings and an angle that is off by 2e-7\n"
    "  float16   2^-9, bfloat16 2^-6: four half units in the last place, one for the single rounding here and three for a\n"
    "            reference that computes in that type and rounds cos and sin, the products and their sum\n"
    "With --angles float32, the largest |position| * 2^-23 more: float32 powers of a reference may be two units off, as\n"
    "torch's are. v_pool is copied and must be equal. NaN equals NaN and nothing else. --tolerance X allows an absolute\n"
    "error of X instead, in all.\n\n"
    "Examples:\n"
    "  ropepool run step.safetensors\n"
    "  ropepool run step.safetensors -o rotated.safetensors --rope-base 500000 --angles float32\n"
    "  ropepool run step.safetensors --rope gemma-3/ --layer-type sliding_attention\n"
    "  ropepool run step.safetensors --expect reference.safetensors --tolerance 1e-3\n"
    "  ropepool run step.safetensors --repeat 100 --threads 1 --json | jq .seconds\n"
    "  curl -s https://example.org/step.safetensors | ropepool run -\n\n";

constexpr char kCheck[] =
    "Reads the file as `ropepool run` does, runs nothing, and lists all that the contract refuses, in its order: the first\n"
    "is what a call raises.\n\n"
    "Examples:\n"
    "  ropepool check step.safetensors\n"
    "  ropepool check step.safetensors --num-kv-heads 4 --json | jq -r '.refusals[].code'\n\n";

constexpr char kErrors[] =
    "Examples:\n"
    "  ropepool errors\n"
    "  ropepool errors --json | jq -r '.[] | [.code, .message] | @tsv'\n\n";

constexpr char kExplain[] =
    "Examples:\n"
    "  ropepool explain RP006\n"
    "  ropepool explain v-shape-mismatch\n"
    "  ropepool explain 'v shape must match k shape, got (4, 10, 64) vs (4, 2, 64)'\n"
    "  ropepool explain - < server.log\n\n";

constexpr char kRope[] =
    "CONFIG is a config.json of Hugging Face, as it is today (rope_parameters) or was before (rope_theta, rope_scaling), or\n"
    "GGUF metadata of llama.cpp as one JSON object. Keys that have nothing to do with the rope are ignored; an unknown rope\n"
    "type, a missing key and one that contradicts another are refused. A model with several ropes is told in all of them,\n"
    "unless --layer-type names one. The wavelength of a pair is the positions that it takes to turn once.\n\n"
    "Examples:\n"
    "  ropepool rope config.json\n"
    "  ropepool rope gemma-3/ --layer-type full_attention --plot rope.svg\n"
    "  ropepool rope config.json --length 131072 --json | jq '.ropes[0].sets[0].pairs[] | .ratio'\n\n";

constexpr char kBench[] =
    "The floor is a copy of what the op reads and writes, into the same pool rows, without its arithmetic: the best of\n"
    "regular stores, of the same with pool rows fetched ahead, of stores past the caches for pool rows, and of those for\n"
    "all. memcpy copies whole arrays, into rows that follow each other. All take turns in each round, on the same threads,\n"
    "and have slots of their own, so that none finds rows that another brought into the caches. On a machine that does\n"
    "something else too, trust shares rather than times.\n\n"
    "Examples:\n"
    "  ropepool bench\n"
    "  ropepool bench --num-qo-heads 9 --num-kv-heads 3 --head-dim 64 --dtype float32 --tokens 1,512 --threads 1\n"
    "  ropepool bench --json | jq -c '.lines[] | [.num_tokens, .share_of_floor]'\n\n";

constexpr char kDoctor[] =
    "Examples:\n"
    "  ropepool doctor\n"
    "  ROPEPOOL_TARGET=AVX2 ropepool doctor --json | jq -r .simd_target\n\n";

// CLI11 reads 010 as 8 and cuts what is too large.
template <class Number>
void add_number(CLI::App& command, const std::string& name, std::optional<Number>& number, const char* description) {
  constexpr bool kInteger = std::is_integral_v<Number>;
  const auto take = [name, &number](const std::string& text) {
    number = number_from<Number>(text);
    if (!number) {
      throw CLI::ValidationError(fmt::format("{} must be {}, got '{}'", name, kInteger ? "an integer" : "a number", text));
    }
  };
  command.add_option_function<std::string>(name, take, description)->type_name(kInteger ? "N" : "X");
}

void add_rope_options(CLI::App& command, std::optional<std::string>& layer_type, std::optional<std::int64_t>& length) {
  command.add_option("--layer-type", layer_type, "of a model with several ropes this one, such as full_attention")
      ->type_name("NAME");
  add_number(command, "--length", length, "the most tokens a sequence may get, where frequencies follow from it");
}

void add_parameters(CLI::App& command, std::string& input, Parameters& parameters) {
  command.add_option("IN", input, "a safetensors file; - for standard input")->required();
  add_number(command, "--head-dim", parameters.head_dim, "lanes of a head");
  add_number(command, "--num-qo-heads", parameters.num_qo_heads, "heads of q");
  add_number(command, "--num-kv-heads", parameters.num_kv_heads, "heads of k, v and the pools");
  add_number(command, "--rope-base", parameters.rope_base, "a model's rope_theta");
  CLI::Option* rope = command.add_option("--rope", parameters.rope,
                                         "instead of a base the rope of this config.json, or of the folder that holds it");
  rope->type_name("CONFIG")->excludes(command.get_option("--rope-base"));
  add_rope_options(command, parameters.layer_type, parameters.length);
  for (const char* name : {"--layer-type", "--length"}) command.get_option(name)->needs(rope);
  command.add_option("--angles", parameters.angles, "exact (the default), or float32 as Hugging Face transformers has them")
      ->type_name("WHICH")
      ->check(CLI::IsMember({"exact", "float32"}));
}

CLI::App* add_command(CLI::App& app, const char* name, const char* description, const char* more, bool& json) {
  CLI::App* command = app.add_subcommand(name, description);
  command->add_flag("--json", json, "for programs to read");
  command->footer(std::string(more) + kExitCodes);
  return command;
}

Exit run_tool(int argc, char** argv) {
  CLI::App app("RoPE and KV-pool ops of LLM inference: run them on files, and learn why they refuse.", "ropepool");
  app.footer(std::string(kMain) + kExitCodes);
  app.set_version_flag("--version", std::string("ropepool ") + version());
  app.require_subcommand(1);
  std::function<Exit()> chosen;

  RunOptions run_options;
  CLI::App* command = add_command(app, "run", "Run rope_pool_fused on the tensors of a file", kRun, run_options.json);
  add_parameters(*command, run_options.input, run_options.parameters);
  command->add_option("-o,--output", run_options.output, "write the results to this file")->type_name("OUT");
  command->add_option("--expect", run_options.expect, "compare with the tensors of this file (q_rot or expected.q_rot, ...)")
      ->type_name("FILE");
  add_number(*command, "--tolerance", run_options.tolerance, "largest absolute error that is right");
  add_number(*command, "--repeat", run_options.repeat, "timed runs, after one that is not counted (5)");
  add_number(*command, "--threads", run_options.threads, "use this many threads at most");
  command->callback([&] { chosen = [&] { return run(run_options); }; });

  CheckOptions check_options;
  command = add_command(app, "check", "List all that the contract refuses in a file", kCheck, check_options.json);
  add_parameters(*command, check_options.input, check_options.parameters);
  command->callback([&] { chosen = [&] { return check(check_options); }; });

  ErrorsOptions errors_options;
  command = add_command(app, "errors", "List every refusal there is", kErrors, errors_options.json);
  command->callback([&] { chosen = [&] { return errors(errors_options); }; });

  ExplainOptions explain_options;
  CLI::App* explain_command =
      add_command(app, "explain", "Say what a refusal means and how to mend it", kExplain, explain_options.json);
  explain_command
      ->add_option("WHAT", explain_options.what,
                   "a code, a name, a message with any shapes in it; - for a traceback or log on standard input")
      ->required();
  explain_command->allow_extras();  // a message may come without quotes, as several words
  explain_command->callback([&, explain_command] {
    for (const std::string& word : explain_command->remaining()) {
      if (word == "--") continue;
      if (word.starts_with("--")) throw CLI::ExtrasError({word});
      explain_options.what += " " + word;
    }
    chosen = [&] { return explain(explain_options); };
  });

  RopeOptions rope_options;
  command = add_command(app, "rope", "Say which rope a model's config means", kRope, rope_options.json);
  command->add_option("CONFIG", rope_options.input, "a config.json, or the folder that holds it; - for standard input")
      ->required();
  add_rope_options(*command, rope_options.layer_type, rope_options.length);
  command->add_option("--plot", rope_options.plot, "draw the wavelengths of all pairs into this SVG file")->type_name("FILE");
  command->callback([&] { chosen = [&] { return rope(rope_options); }; });

  DoctorOptions doctor_options;
  command =
      add_command(app, "doctor", "Say what this build is and what it finds on this machine", kDoctor, doctor_options.json);
  command->callback([&] { chosen = [&] { return doctor(doctor_options); }; });

  BenchOptions bench_options;
  command = add_command(app, "bench", "Time the op beside copies of the same traffic", kBench, bench_options.json);
  add_number(*command, "--num-qo-heads", bench_options.num_qo_heads, "heads of q (32)");
  add_number(*command, "--num-kv-heads", bench_options.num_kv_heads, "heads of k, v and the pools (8)");
  add_number(*command, "--head-dim", bench_options.head_dim, "lanes of a head (128)");
  command->add_option("--dtype", bench_options.dtype, "bfloat16 (the default), float16 or float32")
      ->type_name("WHICH")
      ->check(CLI::IsMember({"bfloat16", "float16", "float32"}));
  command->add_option("--tokens", bench_options.tokens, "tokens a call, a line each (1,8,64,512,4096)")->type_name("N,N,...");
  add_number(*command, "--num-slots", bench_options.num_slots, "slots of the pools (65536)");
  add_number(*command, "--threads", bench_options.threads, "use this many threads at most");
  add_number(*command, "--seconds", bench_options.seconds, "for each line (0.5)");
  command->callback([&] { chosen = [&] { return bench(bench_options); }; });

  if (argc == 1) {
    std::fputs(app.help().c_str(), stderr);
    return Exit::usage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const std::vector<CLI::App*> parsed = app.get_subcommands();
    print(parsed.empty() ? app.help() : parsed.front()->help("ropepool"));
    return Exit::ok;
  } catch (const CLI::CallForVersion& version) {
    print(std::string(version.what()) + "\n");
    return Exit::ok;
  } catch (const CLI::ParseError& fault) {
    const std::vector<CLI::App*> parsed = app.get_subcommands();
    if (parsed.empty() && argv[1][0] != '-') {
      throw Failure(Exit::usage, fmt::format("there is no command '{}'\n`ropepool --help` lists those there are.", argv[1]));
    }
    throw Failure(Exit::usage, fmt::format("{}\n`ropepool {}{}--help` says what can be given.", fault.what(),
                                           parsed.empty() ? "" : parsed.front()->get_name(), parsed.empty() ? "" : " "));
  }
  return chosen();
}

}  // namespace
}  // namespace ropepool::cli

int main(int argc, char** argv) {
  using namespace ropepool::cli;
  handle_signals();
  Exit exit = Exit::machine;
  try {
    exit = run_tool(argc, argv);
  } catch (const Failure& failure) {
    complain(failure.what());
    exit = failure.exit();
  } catch (const std::bad_alloc&) {
    complain("out of memory");
  } catch (const std::exception& error) {
    complain(error.what());
  }
  return static_cast<int>(exit);
}
