#include "core/pool_rows.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "core/index_array.h"
#include "core/of_this_thread.h"

namespace ropepool {

struct PoolRows::Scratch {
  std::vector<std::int64_t> rows;
  std::vector<std::int64_t> table;  // open addressing by slot; -1 is free
};

namespace {

void drop_overwritten_few(std::int64_t* rows, std::int64_t num_tokens) {
  for (std::int64_t t = 0; t + 1 < num_tokens; ++t) {
    if (rows[t] >= 0 && std::find(rows + t + 1, rows + num_tokens, rows[t]) != rows + num_tokens) rows[t] = -1;
  }
}

// From the last token to the first: the first to claim a slot keeps it.
void drop_overwritten(std::int64_t* rows, std::int64_t num_tokens, std::vector<std::int64_t>& table) {
  const std::size_t size = std::bit_ceil(static_cast<std::size_t>(num_tokens) * 2);
  table.assign(size, -1);
  const int shift = 64 - std::countr_zero(size);
  for (std::int64_t t = num_tokens - 1; t >= 0; --t) {
    if (rows[t] < 0) continue;
    std::size_t at = (static_cast<std::uint64_t>(rows[t]) * 0x9E3779B97F4A7C15u) >> shift;
    while (table[at] >= 0 && table[at] != rows[t]) at = (at + 1) & (size - 1);
    if (table[at] == rows[t]) {
      rows[t] = -1;
    } else {
      table[at] = rows[t];
    }
  }
}

}  // namespace

PoolRows::PoolRows(const Tensor& slots, std::int64_t num_slots) : rows_(few_) {
  const std::int64_t num_tokens = slots.shape[0];
  if (num_tokens > kFewTokens) {
    scratch_ = std::move(of_this_thread<std::unique_ptr<Scratch>>());
    if (!scratch_) scratch_ = std::make_unique<Scratch>();
    auto& rows = scratch_->rows;
    if (rows.size() < static_cast<std::size_t>(num_tokens)) rows.resize(static_cast<std::size_t>(num_tokens));
    rows_ = rows.data();
  }

  bool increasing = true;  // as a fresh pool gives them: no slot can be there twice
  std::int64_t last = -1;
  visit_index_array(slots, [&](const auto* values) {
    for (std::int64_t t = 0; t < num_tokens; ++t) {
      const std::int64_t slot = load_once(values + t);
      rows_[t] = slot >= 0 && slot < num_slots ? slot : -1;
      increasing = increasing && rows_[t] > last;
      last = rows_[t];
    }
  });
  if (increasing) return;
  if (num_tokens <= kFewTokens) {
    drop_overwritten_few(rows_, num_tokens);
  } else {
    drop_overwritten(rows_, num_tokens, scratch_->table);
  }
}

PoolRows::~PoolRows() {
  if (scratch_) of_this_thread<std::unique_ptr<Scratch>>() = std::move(scratch_);
}

}  // namespace ropepool
