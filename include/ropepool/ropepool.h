// ropepool: everything between the QKV projection and the attention output of LLM inference.
#pragma once

#include <ropepool/catalog.h>
#include <ropepool/executor.h>
#include <ropepool/head_ops.h>
#include <ropepool/refusal.h>
#include <ropepool/rerotate.h>
#include <ropepool/result.h>
#include <ropepool/rope.h>
#include <ropepool/rope_alone.h>
#include <ropepool/rope_config.h>
#include <ropepool/rope_pool_fused.h>
#include <ropepool/rope_pool_fused_qkv.h>
#include <ropepool/runtime.h>
#include <ropepool/tensor.h>
#include <ropepool/write_kv.h>
