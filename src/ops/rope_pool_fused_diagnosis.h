// What a user most likely did, told from the arguments of a refused call.
#pragma once

#include <string>

#include <ropepool/rope_pool_fused.h>

namespace ropepool {

struct Diagnosis {
  std::string cause;  // "" where nothing fits
  std::string hint;   // "" for the catalog's first solution
};

// Of the argument that the rule's finding names, and no other.
Diagnosis diagnose(Refusal refusal, const RopePoolFusedArgs& args, const Error::Finding& finding);

}  // namespace ropepool
