"""ncnn's Real-ESRGAN over one picture again and again on the GPU: a line `round NUMBER SHA-256` each, of all pixels.

    upscale.py NETWORK SIDE ROUNDS

NETWORK is the folder of the network, SIDE the picture's side in pixels, ROUNDS how many, 0 for as many until a file `stop` is there.
"""

import hashlib
import os
import sys

import ncnn
import numpy

folder, side, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if ncnn.get_gpu_count() == 0:
    sys.exit("upscale: there is no Vulkan device")

net = ncnn.Net()
net.opt.use_vulkan_compute = True
net.opt.num_threads = 1
net.set_vulkan_device(0)
for file, load in (("param", net.load_param), ("bin", net.load_model)):
    if load(f"{folder}/realesr-animevideov3-x2.{file}") != 0:
        sys.exit(f"upscale: the network's {file} cannot be read")

# The same picture everywhere: 0 to 1, without a generator that could be another one there.
picture = (numpy.arange(3 * side * side, dtype=numpy.uint32) * numpy.uint32(2654435761) >> numpy.uint32(8)).astype(numpy.float32)
picture = (picture / numpy.float32(1 << 24)).reshape(3, side, side)

number = 0
while number != rounds if rounds else not os.path.exists("stop"):
    extractor = net.create_extractor()
    extractor.input("data", ncnn.Mat(picture).clone())
    status, result = extractor.extract("output")
    if status != 0:
        sys.exit(f"upscale: round {number} fails with {status}")
    print("round", number, hashlib.sha256(numpy.array(result).tobytes()).hexdigest(), flush=True)
    number += 1
    del extractor, result
net.clear()
ncnn.destroy_gpu_instance()
