"""Small programs of machine learning on wgpu, on Dawn, and on Vulkan itself: what they find, next to NumPy's."""

import sys

import numpy as np

random = np.random.default_rng(1)


def ferrotensor():
    import ferrotensor as ft

    gpu = ft.Device("gpu")
    left, right = np.arange(64 * 48).reshape(64, 48) * 0.01, np.arange(48 * 32).reshape(48, 32) * 0.02
    product = ft.tensor(left.tolist(), device=gpu) @ ft.tensor(right.tolist(), device=gpu)
    print("product", np.allclose(np.array(product.to("cpu").tolist()), left @ right, rtol=1e-4))
    weights = ft.tensor(np.linspace(-1, 1, 32).reshape(2, 16).tolist(), device=gpu, requires_grad=True)
    (ft.tensor([[0, 0], [0, 1], [1, 0], [1, 1]], device=gpu) @ weights).tanh().sum().backward()
    print("gradient", np.round(np.array(weights.grad.to("cpu").tolist()).sum(), 3))


def xgboost():
    import xgboost_webgpu

    points = random.standard_normal((1000, 10)).astype(np.float32)
    labels = (points[:, 0] + points[:, 1] > 0).astype(np.float32)
    trees = xgboost_webgpu.XGBClassifier(n_estimators=20, max_depth=4, learning_rate=0.1, device="webgpu")
    trees.fit(points, labels)
    print("score", trees.score(points, labels) > 0.9, np.round(np.array(trees.predict_proba(points)).sum(0), 2))


def aule():
    from aule.vulkan import Aule

    query, key, value = (random.standard_normal((1, 2, 64, 64)).astype(np.float32) for _ in range(3))
    weights = np.exp(query @ key.transpose(0, 1, 3, 2) / 8)
    wanted = weights / weights.sum(-1, keepdims=True) @ value
    with Aule() as attention:
        for variant in attention.available_shader_variants:
            attention.set_shader_variant(variant)
            print("variant", variant, np.abs(attention.attention(query, key, value) - wanted).max() < 1e-5)


def onnxruntime():
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    kernel = random.standard_normal((8, 3, 3, 3)).astype(np.float32)
    dense = (random.standard_normal((8 * 16 * 16, 10)) * 0.05).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "dense"], ["m"]),
        helper.make_node("Softmax", ["m"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 32, 32])]
    results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])]
    constants = [numpy_helper.from_array(kernel, "kernel"), numpy_helper.from_array(dense, "dense")]
    graph = helper.make_graph(nodes, "network", ends, results, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    picture = {"x": random.standard_normal((1, 3, 32, 32)).astype(np.float32)}
    cpu = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, picture)[0]
    session = onnxruntime.InferenceSession(model, providers=["WebGpuExecutionProvider"])
    print(session.get_providers()[0], np.abs(session.run(None, picture)[0] - cpu).max() < 1e-4)


globals()[sys.argv[1]]()
