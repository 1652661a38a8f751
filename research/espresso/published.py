"""Published values of Espresso's evaluation, by figure, series and place: ratios, shares, counts, seconds."""

from __future__ import annotations

from research.figure import Published

SOURCE = "Espresso (Wang, Rice 2023, chapter 4), text, tables and figures; bars of the public paper"

#: Throughput over FP32 at 64 GPUs.
_THROUGHPUT = {
    "BERT-base": {"BytePS-Compress": 1.21, "HiTopKComm": 1.03, "HiPress": 1.13, "Espresso": 1.58},
    "GPT2": {"BytePS-Compress": 1.14, "HiTopKComm": 1.02, "HiPress": 1.21, "Espresso": 1.62},
    "UGATIT": {"BytePS-Compress": 0.82, "HiTopKComm": 1.66, "HiPress": 1.86, "Espresso": 2.49},
    "VGG16": {"BytePS-Compress": 0.81, "HiTopKComm": 2.1, "HiPress": 2.38, "Espresso": 3.69},
    "LSTM": {"BytePS-Compress": 0.88, "HiTopKComm": 1.02, "HiPress": 1.00, "Espresso": 1.77},
    "ResNet101": {"BytePS-Compress": 1.02, "HiTopKComm": 0.46, "HiPress": 0.96, "Espresso": 1.20},
}
_FP32_SCALING = {"BERT-base": 0.51, "GPT2": 0.58, "LSTM": 0.46, "ResNet101": 0.70}
#: Tensors, milliseconds of the GPU decision, offload candidates, milliseconds of the offload search.
_SELECTION = {
    "VGG16": (32, 17, 11, 1),
    "ResNet101": (314, 179, 42, 30),
    "UGATIT": (148, 84, 32, 12),
    "BERT-base": (207, 125, 54, 44),
    "GPT2": (148, 99, 34, 18),
    "LSTM": (10, 1, 5, 1),
}
#: Published plans on four machines: untouched tensors, those compressed on GPUs, and on processors. The 1 and
#: 5 tensors that are cast to FP16 count as untouched, since none of our codecs compresses them.
_PLAN_SHAPES = {
    "BERT-base": (126, 14, 59),
    "GPT2": (98, 19, 31),
    "UGATIT": (99, 8, 41),
    "VGG16": (23, 6, 3),
    "LSTM": (7, 3, 0),
}

VALUES: dict[tuple[str, str, str], float] = {
    ("tree", "Options", "two devices"): 4341.0,
    ("tree", "Options that compress", "GPUs"): 165.0,
    ("arithmetic", "Communication of the iteration", "GPT2, scaling .58"): 0.42,
    ("arithmetic", "Communication of the iteration", "BERT-base, scaling .51"): 0.49,
    ("arithmetic", "Faster by", "GPT2, .58 to .67"): 0.15,
    ("arithmetic", "Faster by", "GPT2, .58 to .64"): 0.10,
    ("arithmetic", "Faster by", "BERT-base, .51 to .55"): 0.08,
    ("arithmetic", "Faster by", "BERT-base, .51 to .61"): 0.20,
    ("arithmetic", "Faster by", "LSTM, .46 to .43"): -0.06,
    ("arithmetic", "Faster by", "LSTM, .46 to .42"): -0.09,
    ("arithmetic", "GPU hours", "BERT-base, 1,200 ideal, scaling .51"): 2350.0,
    ("arithmetic", "Saved on the wire", "EFSignSGD"): 0.969,
    ("arithmetic", "Brute-force offloads", "11 tensors"): 2048.0,
    ("bound", "Distance from the upper bound", "GPT2"): 0.03,
    ("bound", "Distance from the upper bound", "UGATIT"): 0.05,
    ("bound", "Distance from the upper bound", "BERT-base"): 0.07,
    ("bubbles", "Tensors before bubbles", "LSTM on NVLink"): 0.5,
    ("other codecs", "Espresso over FP32", "BERT-base with DGC"): 1.55,
    ("other codecs", "Espresso over FP32", "ResNet101 with EFSignSGD"): 1.23,
}
VALUES |= {
    ("throughput", system, name): value
    for name, each in _THROUGHPUT.items()
    for system, value in each.items()
}
VALUES |= {("throughput", "FP32 scaling factor", name): value for name, value in _FP32_SCALING.items()}
for _name, (_tensors, _decided, _candidates, _offloaded) in _SELECTION.items():
    VALUES |= {
        ("selection", "Tensors", _name): float(_tensors),
        ("selection", "GPU decision", _name): _decided / 1e3,
        ("selection", "Offload candidates", _name): float(_candidates),
        ("selection", "Offload search", _name): _offloaded / 1e3,
    }
for _name, _counts in _PLAN_SHAPES.items():
    for _series, _value in zip(
        ("Untouched", "Compressed on GPUs", "Compressed on processors"), _counts, strict=True
    ):
        VALUES["plans", _series, _name] = float(_value)


def published() -> Published:
    """Return all published values."""
    return Published(VALUES, SOURCE)
