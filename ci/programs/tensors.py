"""A matrix product, a function of each element and sums of rows, compiled by IREE for Vulkan and run by its own tool."""

import pathlib
import subprocess
import sys
import sysconfig

TEXT = """
func.func @product(%a: tensor<64x96xf32>, %b: tensor<96x32xf32>) -> tensor<64x32xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<64x32xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<64x32xf32>) -> tensor<64x32xf32>
  %sum = linalg.matmul ins(%a, %b : tensor<64x96xf32>, tensor<96x32xf32>)
      outs(%start : tensor<64x32xf32>) -> tensor<64x32xf32>
  return %sum : tensor<64x32xf32>
}
func.func @tanh(%a: tensor<1000xf32>) -> tensor<1000xf32> {
  %result = math.tanh %a : tensor<1000xf32>
  return %result : tensor<1000xf32>
}
func.func @sums(%a: tensor<256x100xf32>) -> tensor<256xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<256xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<256xf32>) -> tensor<256xf32>
  %sum = linalg.reduce {arith.addf} ins(%a: tensor<256x100xf32>) outs(%start: tensor<256xf32>) dimensions=[1]
  return %sum : tensor<256xf32>
}
"""
CALLS = {
    "product": ["64x96xf32=2", "96x32xf32=3"],
    "tanh": ["1000xf32=0.5"],
    "sums": ["256x100xf32=1.5"],
}

module = pathlib.Path(sys.argv[1]) / "iree.vmfb"
if not module.exists():
    import iree.compiler

    module.write_bytes(iree.compiler.compile_str(TEXT, target_backends=["vulkan-spirv"]))
tool = pathlib.Path(sysconfig.get_path("scripts")) / "iree-run-module"
for function, inputs in CALLS.items():
    command = [tool, "--device=vulkan", f"--module={module}", f"--function={function}"]
    subprocess.run(command + [f"--input={value}" for value in inputs], check=True)
