// ropepool check: every refusal of the contract that applies to the tensors of a file.
#include "commands.h"

#include <vector>

#include <fmt/format.h>

#include "input.h"
#include "ops/rope_pool_fused.h"
#include "terminal.h"

namespace ropepool::cli {

Exit check(const CheckOptions& options) {
  const Input input(options.input);
  const Arguments arguments = input.arguments(options.parameters);
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
