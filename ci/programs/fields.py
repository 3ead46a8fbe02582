"""Kernels of Taichi, or of GsTaichi, which has its interface: fields, reductions, atomics, arrays of NumPy, matrices, floats of 64 bits."""

import importlib
import sys

import numpy as np

ti = importlib.import_module(sys.argv[1])
ti.init(arch=ti.vulkan, offline_cache=False)
print(ti.lang.impl.current_cfg().arch)
count = 1000
squares = ti.field(ti.f32, count)
total = ti.field(ti.f32, ())
sums = ti.field(ti.i32, 16)
thirds = ti.field(ti.f64, count)
matrices = ti.Matrix.field(3, 3, ti.f32, 64)
traces = ti.field(ti.f32, 64)


@ti.kernel
def fill():
    for i in squares:
        squares[i] = i * 1.0 * i
        thirds[i] = ti.cast(i, ti.f64) / 3


@ti.kernel
def add():
    for i in squares:
        total[None] += squares[i] * 0.001
        ti.atomic_add(sums[i % 16], i)


@ti.kernel
def change(source: ti.types.ndarray(), target: ti.types.ndarray()):
    for i in source:
        target[i] = source[i] * 2 + 1


@ti.kernel
def multiply():
    for i in matrices:
        matrix = ti.Matrix([[1.0 + i, 2.0, 0.0], [0.0, 1.0, 3.0], [2.0, 0.0, 1.0]])
        matrices[i] = matrix @ matrix
        traces[i] = matrices[i].trace()


fill()
add()
multiply()
numbers = np.arange(count)
source, target = numbers.astype(np.float32), np.zeros(count, np.float32)
change(source, target)
print("squares", np.array_equal(squares.to_numpy(), (numbers**2).astype(np.float32)))
print("thirds", np.allclose(thirds.to_numpy(), numbers / 3, rtol=1e-15))
print("total", abs(total[None] / (0.001 * (numbers**2).sum()) - 1) < 1e-3)
print("sums", np.array_equal(sums.to_numpy(), [numbers[numbers % 16 == i].sum() for i in range(16)]))
print("arrays", np.array_equal(target, source * 2 + 1))
print("traces", np.array_equal(traces.to_numpy(), [(1 + i) ** 2 + 2 for i in range(64)]))
