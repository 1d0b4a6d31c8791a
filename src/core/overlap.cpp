#include "core/overlap.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

namespace ropepool {
namespace {

struct Axis {
  std::uint64_t stride;  // bytes
  std::uint64_t steps;   // length - 1
};

// The bytes of a tensor: an item at base + the sum of stride * index, with all strides positive and the longest stride first.
struct Lattice {
  std::uint64_t base;
  std::uint64_t item_size;
  std::array<Axis, Dims::kMaxRank> axes;
  int rank = 0;

  const Axis* begin() const { return axes.data(); }
  const Axis* end() const { return axes.data() + rank; }

  // Bytes from the first to the last that the axes from `first` on reach.
  std::uint64_t span(int first = 0) const {
    std::uint64_t bytes = item_size;
    for (int i = first; i < rank; ++i)
      bytes += axes[static_cast<std::size_t>(i)].stride * axes[static_cast<std::size_t>(i)].steps;
    return bytes;
  }
};

// nullopt where there is no byte. Axes of stride 0 are left out: they add none.
std::optional<Lattice> lattice_of(const Tensor& tensor) {
  if (tensor.empty()) return std::nullopt;
  Lattice lattice{reinterpret_cast<std::uint64_t>(tensor.data), static_cast<std::uint64_t>(item_size(tensor.dtype)), {}, 0};
  for (int i = 0; i < tensor.rank(); ++i) {
    const std::int64_t steps = tensor.shape[i] - 1;
    if (steps == 0 || tensor.strides[i] == 0) continue;
    const std::int64_t stride = tensor.strides[i] * static_cast<std::int64_t>(lattice.item_size);
    if (stride < 0) lattice.base += static_cast<std::uint64_t>(stride * steps);
    const auto forward = static_cast<std::uint64_t>(stride);  // its negation has a value for the least stride too
    lattice.axes[static_cast<std::size_t>(lattice.rank++)] = {stride < 0 ? -forward : forward,
                                                              static_cast<std::uint64_t>(steps)};
  }
  std::sort(lattice.axes.begin(), lattice.axes.begin() + lattice.rank,
            [](const Axis& a, const Axis& b) { return a.stride > b.stride; });
  return lattice;
}

// Cut both lattices at `cut`: axes with longer strides repeat a footprint every `period` bytes, their greatest common divisor.
// True where the footprints fit into a period and lie at different places of it, so that no byte can be shared.
bool apart_modulo_period(const Lattice& a, const Lattice& b, std::uint64_t cut) {
  std::uint64_t period = 0;
  int inner_a = 0, inner_b = 0;
  for (; inner_a < a.rank && a.axes[static_cast<std::size_t>(inner_a)].stride >= cut; ++inner_a) {
    period = std::gcd(period, a.axes[static_cast<std::size_t>(inner_a)].stride);
  }
  for (; inner_b < b.rank && b.axes[static_cast<std::size_t>(inner_b)].stride >= cut; ++inner_b) {
    period = std::gcd(period, b.axes[static_cast<std::size_t>(inner_b)].stride);
  }
  const std::uint64_t span_a = a.span(inner_a), span_b = b.span(inner_b);
  // Where b begins, seen from a, on a circle of one period; wrapping subtraction keeps it right when b lies before a.
  const std::uint64_t offset = a.base <= b.base ? (b.base - a.base) % period : (period - (a.base - b.base) % period) % period;
  return span_a <= offset && span_b <= period - offset;
}

}  // namespace

bool overlaps_itself(const Tensor& tensor) {
  // The plain case without sorting: each step goes past all that lies inside it.
  std::int64_t span = 1;
  int axis = tensor.rank() - 1;
  for (; axis >= 0; --axis) {
    if (tensor.shape[axis] != 1 && tensor.strides[axis] < span) break;
    span += tensor.strides[axis] * (tensor.shape[axis] - 1);
  }
  if (axis < 0) return false;
  for (int i = 0; i < tensor.rank(); ++i) {
    if (!tensor.empty() && tensor.shape[i] > 1 && tensor.strides[i] == 0) return true;
  }
  const auto lattice = lattice_of(tensor);
  if (!lattice) return false;
  // Enough, and true of every array that was made by slicing and transposing: each step goes past all that lies inside it.
  for (int i = 0; i < lattice->rank; ++i) {
    if (lattice->axes[static_cast<std::size_t>(i)].stride < lattice->span(i + 1)) return true;
  }
  return false;
}

bool may_overlap(const Tensor& a, const Tensor& b) {
  const auto x = lattice_of(a), y = lattice_of(b);
  if (!x || !y) return false;
  const auto apart = [&](const Axis& axis) { return apart_modulo_period(*x, *y, axis.stride); };
  return std::none_of(x->begin(), x->end(), apart) && std::none_of(y->begin(), y->end(), apart);
}

bool same_view(const Tensor& a, const Tensor& b) {
  if (a.data != b.data || a.dtype != b.dtype || a.shape != b.shape) return false;
  for (int i = 0; i < a.rank(); ++i) {
    if (a.shape[i] > 1 && a.strides[i] != b.strides[i]) return false;
  }
  return true;
}

}  // namespace ropepool
