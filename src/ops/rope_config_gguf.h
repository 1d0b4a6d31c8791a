// The rope of GGUF metadata, whose keys are one flat object.
#pragma once

#include <string>
#include <vector>

#include <ropepool/rope_config.h>

#include "ops/rope_config_json.h"

namespace ropepool::config {

// May throw Refused, as all of them.
bool is_gguf(const Object& root);
RopeConfig read_gguf(const Object& root, const RopeConfigOptions& options);
std::vector<std::string> gguf_layer_types(const Object& root);

}  // namespace ropepool::config
