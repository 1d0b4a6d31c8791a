// ropepool: everything between the QKV projection and the attention output of LLM inference.
#pragma once

#include <ropepool/catalog.h>
#include <ropepool/executor.h>
#include <ropepool/refusal.h>
#include <ropepool/result.h>
#include <ropepool/rope.h>
#include <ropepool/rope_config.h>
#include <ropepool/rope_pool_fused.h>
#include <ropepool/runtime.h>
#include <ropepool/tensor.h>
