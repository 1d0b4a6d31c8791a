"""The benchmark's plots, as SVG and PNG."""

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

# Okabe and Ito's colours, which people with any colour vision tell apart; markers say the same again.
BLACK, ORANGE, SKY, GREEN, BLUE, RED, PINK = "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"
GREY = "#777777"
MODEL_STYLES = {
    "llama-3-8b": (BLUE, "o"),
    "smollm2-135m": (ORANGE, "s"),
    "qwen2.5-0.5b": (GREEN, "^"),
    "gemma-2-9b": (RED, "D"),
    "phi-2": (PINK, "v"),
}
PEER_STYLES = {
    "torch-eager": (ORANGE, "s"),
    "torch-compiled": (RED, "D"),
    "vllm": (PINK, "v"),
    "mlx": (GREY, "P"),
    "onnxruntime": (GREEN, "^"),
    "openvino": (SKY, "X"),
    "ggml": (BLACK, "*"),
}
ORDER_STYLES = {
    "random": (BLUE, "o"),
    "sorted": (ORANGE, "s"),
    "consecutive": (GREEN, "^"),
    "random on huge pages": (BLACK, "*"),
}
OTHERS = ((BLACK, "*"), (SKY, "X"), (GREY, "P"))


def style_of(styles, name, index=0):
    color, marker = styles.get(name, OTHERS[index % len(OTHERS)])
    return {"color": color, "marker": marker, "markersize": 5, "linewidth": 1.6}


def count(value):
    """131,072 as it is; 1,048,576 and so on, and all above, as 1 Mi."""
    if value < 1 << 18:
        return f"{value:,}"
    for size, unit in ((1 << 20, "Mi"), (1 << 10, "Ki")):
        if value >= size and value % size == 0:
            return f"{value // size:.0f} {unit}"
    return f"{value:g}"


def powers_of_two(axis, values):
    axis.set_xscale("log", base=2)
    axis.set_xticks(sorted(set(values)), [count(value) for value in sorted(set(values))])
    axis.xaxis.set_minor_locator(NullLocator())


def panels(number, width=4.2, height=3.9):
    figure, axes = plt.subplots(1, number, figsize=(width * number + 0.6, height), sharey=True, squeeze=False)
    for axis in axes[0]:
        axis.grid(color="#dddddd", linewidth=0.7)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelleft=True)
    return figure, axes[0]


def finish(figure, axes, title, path, columns=4):
    """A legend of all panels below them, and the files."""
    found = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    rows = -(-len(found) // columns)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    figure.legend(found.values(), found.keys(), loc="lower center", ncols=columns, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.015 + 0.06 * rows, 1, 0.98))
    for kind in ("svg", "png"):
        figure.savefig(
            path.with_suffix(f".{kind}"), dpi=150, facecolor="white", metadata={"Date": None} if kind == "svg" else None
        )
    plt.close(figure)


def machine(results):
    here = results["machine"]
    return f"{here['cpu']}, {here['cores']} cores, {results['target']}" + (" (a short run)" if results["short"] else "")


def distinct(lines, key):
    return list(dict.fromkeys(line[key] for line in lines))


def share_of_floor(results, path):
    lines = results["lines"]
    figure, axes = panels(len(distinct(lines, "dtype")))
    for axis, dtype in zip(axes, distinct(lines, "dtype"), strict=True):
        for index, model in enumerate(distinct(lines, "model")):
            mine = [line for line in lines if (line["dtype"], line["model"]) == (dtype, model)]
            x, shares = [line["num_tokens"] for line in mine], [line["share_of_floor"] for line in mine]
            style = style_of(MODEL_STYLES, model, index)
            axis.plot(x, [share["median"] for share in shares], label=model, **style)
            low, high = ([share[end] for share in shares] for end in ("low", "high"))
            axis.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)
        axis.axhline(1, color=BLACK, linewidth=1, linestyle="--", label="floor: a copy of the same bytes")
        axis.set_title(dtype, fontsize=10)
        axis.set_xlabel("tokens a call")
        axis.set_ylim(0, max(1.2, *(1.1 * line["share_of_floor"]["median"] for line in lines)))
        powers_of_two(axis, distinct(lines, "num_tokens"))
    axes[0].set_ylabel("op's speed, 1 = floor's")
    title = f"rope_pool_fused: share of the floor, 1 thread; medians and quartiles over rounds\n{machine(results)}"
    finish(figure, axes, title, path, columns=3)


def time_beside_peers(results, path):
    peers = results["peers"]
    own = [line for line in results.get("lines", []) if line["model"] == peers[0]["model"]]
    dtypes = distinct(peers, "dtype")
    figure, axes = panels(len(dtypes), height=4.4)
    for axis, dtype in zip(axes, dtypes, strict=True):
        here = [peer for peer in peers if peer["dtype"] == dtype and "seconds" in peer]
        x = sorted(distinct(here, "num_tokens"))
        # The op's least median of the peers' processes.
        y = [1e6 * min(peer["seconds"]["op"]["median"] for peer in here if peer["num_tokens"] == n) for n in x]
        axis.plot(x, y, label="op, from Python", color=BLUE, linewidth=2.4, marker="o", markersize=5, zorder=3)
        mine = [line for line in own if line["dtype"] == dtype]
        for label, color, dashes in (("op, from C++", BLUE, "-."), ("floor", BLACK, "--"), ("memcpy", BLACK, ":")):
            names = [{"op, from C++": "op", "floor": line["floor"]}.get(label, label) for line in mine]
            y = [1e6 * line["seconds"][name]["median"] for line, name in zip(mine, names, strict=True)]
            x = [line["num_tokens"] for line in mine]
            axis.plot(x, y, label=label, color=color, linestyle=dashes, linewidth=1.3)
        for name in distinct(here, "peer"):
            mine = [peer for peer in here if peer["peer"] == name]
            x, y = zip(*((peer["num_tokens"], 1e6 * peer["seconds"]["peer"]["median"]) for peer in mine), strict=True)
            axis.plot(x, y, label=mine[0]["label"], **style_of(PEER_STYLES, name))
        axis.set_title(dtype, fontsize=10)
        axis.set_xlabel("tokens a call")
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(10, numticks=12))
        axis.yaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        powers_of_two(axis, distinct(peers, "num_tokens"))
    axes[0].set_ylabel("median time of a call, us")
    title = f"RoPE and the rows of the pool, {peers[0]['model']}, 1 thread\n{machine(results)}"
    finish(figure, axes, title, path, columns=5)


def scaling_by_threads(results, path):
    lines = results["threads"]
    tokens, threads = distinct(lines, "num_tokens"), sorted(distinct(lines, "threads"))
    figure, axes = panels(len(tokens), width=3.6)
    for axis, num_tokens in zip(axes, tokens, strict=True):
        mine = {
            line["threads"]: line["seconds"] | {"floor": line["seconds"][line["floor"]]}
            for line in lines
            if line["num_tokens"] == num_tokens
        }
        for label, color, marker, style in (("op", BLUE, "o", "-"), ("floor", ORANGE, "s", "--"), ("memcpy", GREEN, "^", ":")):
            y = [mine[1][label]["median"] / mine[number][label]["median"] for number in threads]
            axis.plot(threads, y, label=label, color=color, marker=marker, linestyle=style, linewidth=1.8, markersize=5)
        axis.plot(threads, threads, color="#999999", linewidth=1, label="as many times as threads")
        axis.set_title(f"{num_tokens:,} tokens", fontsize=10)
        axis.set_xlabel("threads")
        axis.set_xticks(threads)
    axes[0].set_ylim(bottom=0)
    axes[0].set_ylabel("speed, 1 = one thread's")
    title = f"Scaling by threads, {lines[0]['model']}, {lines[0]['dtype']}\n{machine(results)}"
    finish(figure, axes, title, path)


def growth(results, path):
    figure, axes = panels(2, width=5.2)
    for axis, part, key in zip(axes, ("tokens", "slots"), ("num_tokens", "num_slots"), strict=True):
        lines = results["growth"][part]
        for order in distinct(lines, "order"):
            mine = [line for line in lines if line["order"] == order]
            x = [line[key] for line in mine]
            style = style_of(ORDER_STYLES, order)
            for label, kind in ((f"op, {order}", "-"), (f"floor, {order}", "--")):
                name = "op" if label.startswith("op") else None
                y = [1e9 * line["seconds"][name or line["floor"]]["median"] / line["num_tokens"] for line in mine]
                axis.plot(x, y, label=label, linestyle=kind, **(style if name else style | {"marker": None, "linewidth": 1.2}))
        powers_of_two(axis, distinct(lines, key))
    axes[0].set_ylim(bottom=0)  # of both, and when all is drawn: the limit above stays where it is then
    tokens, slots = results["growth"]["tokens"][0], results["growth"]["slots"][0]
    axes[0].set_title(f"more tokens a call, {count(tokens['num_slots'])} slots", fontsize=10)
    axes[0].set_xlabel("tokens a call")
    axes[0].set_ylabel("median time, ns a token")
    axes[1].set_title(f"larger pools, {slots['num_tokens']} tokens a call", fontsize=10)
    axes[1].set_xlabel("slots of the pools")
    title = f"Growth, {tokens['model']}, {tokens['dtype']}, 1 thread\n{machine(results)}"
    finish(figure, axes, title, path, columns=3)


def draw(results, folder):
    plt.rcParams.update({"font.size": 9, "svg.hashsalt": "ropepool", "svg.fonttype": "none", "axes.edgecolor": "#555555"})
    if results.get("lines"):
        share_of_floor(results, folder / "share-of-floor")
    if any("seconds" in peer for peer in results.get("peers", [])):
        time_beside_peers(results, folder / "time-beside-peers")
    if results.get("threads"):
        scaling_by_threads(results, folder / "scaling-by-threads")
    if results.get("growth"):
        growth(results, folder / "growth")
