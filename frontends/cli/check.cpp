// ropepool check: every refusal of the contract that applies to the tensors of a file.
#include "commands.h"

#include <optional>
#include <vector>

#include <fmt/format.h>

#include "input.h"
#include "ops/rope_pool_fused.h"
#include "terminal.h"

namespace ropepool::cli {

Exit check(const CheckOptions& options) {
  const Input input(options.input);
  std::optional<Rope> rope;
  if (options.parameters.rope) {
    if (options.input == "-" && *options.parameters.rope == "-") {
      throw Failure(Exit::usage, "IN and CONFIG can't both be standard input");
    }
    auto made = RopeInput(options.parameters).rope();
    if (!made) {
      complain(made.error().message());
      if (options.json) print_json(Json{{"ok", false}, {"refusals", Json::array({error_json(made.error())})}});
      return exit_for(made.error());
    }
    rope = made.value();
  }
  const Arguments arguments = input.arguments(options.parameters, rope ? &*rope : nullptr);
  // `run` makes q_out and k_out itself.
  std::vector<Error> refusals = contract::all_refusals(arguments.op, contract::Outputs::made_later);
  for (Error& refusal : refusals) refusal = contract::with_angles(refusal, arguments.parameters.back().value);
  const Exit exit = refusals.empty() ? Exit::ok : exit_for(refusals.front());
  if (options.json) {
    Json json{{"ok", refusals.empty()}};
    describe(arguments, input.file, json);
    json["refusals"] = Json::array();
    for (const Error& refusal : refusals) json["refusals"].push_back(error_json(refusal));
    print_json(json);
    return exit;
  }
  const Terminal terminal = Terminal::standard_output();
  std::string text = describe(arguments, input.file);
  for (const Error& refusal : refusals) text += fmt::format("\n{}\n", refusal.message());
  text += refusals.empty()
              ? fmt::format("\n{}: the contract refuses nothing\n", terminal.green("ok"))
              : fmt::format("\n{}: {} in all; a call raises the first\n", terminal.red("refused"), refusals.size());
  print(text);
  return exit;
}

}  // namespace ropepool::cli
