"""Published values of MoESys's evaluation, by figure, series and place."""

from __future__ import annotations

from research.figure import Published

SOURCE = "MoESys (arXiv 2205.10034, version 3), tables 1 to 6 and text"

#: Experts, as many as GPUs: billions of parameters, tokens per second and GB of a GPU of each system.
TABLE_2 = {
    8: (13.9, 24165.0, 31085.0, 68.9, 56.8),
    16: (26.8, 43691.0, 59136.0, 66.2, 53.9),
    32: (52.6, 82957.0, 113456.0, 66.8, 54.5),
    64: (104.1, 157728.0, 209970.0, 66.3, 54.4),
    128: (207.2, 283706.0, 376968.0, 66.4, 54.3),
}
#: Billions of parameters and GPUs: PaddleFleetX over Megatron-LM.
TABLE_1 = {"0.35 B, 8 GPUs": 1.142, "1.3 B, 8 GPUs": 1.056, "6.7 B, 16 GPUs": 1.117, "175 B, 128 GPUs": 1.004}
#: Samples per second on 4 and 8 GPUs.
TABLE_3 = {4: 250.4, 8: 591.9}
#: Experts, hidden: GB and tokens per second, replicated and partitioned.
TABLE_4 = {
    (4, 2048): (4.68, 2.43, 289452.0, 300451.0),
    (4, 4096): (7.51, 4.67, 152144.0, 167352.0),
    (4, 8192): (15.81, 8.63, 80421.0, 91687.0),
    (8, 2048): (7.46, 5.78, 144159.0, 150161.0),
    (8, 4096): (12.80, 9.70, 86237.0, 95890.0),
    (8, 8192): (27.80, 20.49, 40605.0, 46938.0),
    (16, 2048): (18.55, 15.73, 53428.0, 55725.0),
    (16, 4096): (31.41, 27.98, 26321.0, 29047.0),
    (16, 8192): (63.25, 55.75, 12065.0, 13902.0),
}
#: Part: GB, tokens per second of a GPU. The baseline has 28 GB and 30,604.
TABLE_5 = {
    "Elastic": (23.0, 35194.0),
    "Resource-aware": (28.0, 33664.0),
    "Embedding partition": (25.0, 31033.0),
}
BASELINE_5 = (28.0, 30604.0)
#: Billions of parameters, GPUs: tokens per second of DeepSpeed and MoESys.
TABLE_6 = {(10.0, 1): (4303.0, 4551.0), (106.5, 8): (27215.0, 29681.0), (209.6, 16): (35310.0, 40059.0)}


def _values() -> dict[tuple[str, str, str], float]:
    values: dict[tuple[str, str, str], float] = {}
    for gpus, (billions, deep, moesys, deep_gb, moesys_gb) in TABLE_2.items():
        x = f"{gpus} GPUs"
        values["sizes", "Parameters, billions", x] = billions
        values["sizes", "GB of a GPU, MoESys", x] = moesys_gb
        values["sizes", "GB of a GPU, DeepSpeed", x] = deep_gb
        values["training", "Tokens per second, MoESys", x] = moesys
        values["training", "Tokens per second, DeepSpeed", x] = deep
        values["training", "MoESys over DeepSpeed", x] = moesys / deep
    for x, ratio in TABLE_1.items():
        values["training", "Dense models, over Megatron-LM", x] = ratio
    for gpus, rate in TABLE_3.items():
        values["elastic", "Samples per second", f"{gpus} GPUs"] = rate
    values["elastic", "Gain of each GPU", "8 over 4 GPUs"] = 1.182
    values["elastic", "GPUs of the recipe", "VIMER-UFO 2.0"] = 48.0
    values["elastic", "UFO over PyTorch, throughput", "32 GPUs"] = 1.64
    values["elastic", "UFO over PyTorch, memory", "32 GPUs"] = 0.82
    values["all_to_all", "Communication over flat", "80.7 B, 32 GPUs"] = 0.845
    values["all_to_all", "Step over flat", "80.7 B, 32 GPUs"] = 0.897
    values["all_to_all", "Messages between servers, flat over hierarchical", "8 GPUs a server"] = 8.0
    for (experts, hidden), (gb, part_gb, rate, part_rate) in TABLE_4.items():
        x = f"{experts} experts, h {hidden}"
        values["embedding", "Memory, partitioned over replicated", x] = part_gb / gb
        values["embedding", "Speed, partitioned over replicated", x] = part_rate / rate
    for part, (gb, rate) in TABLE_5.items():
        values["cross", "Speed over the baseline", part] = rate / BASELINE_5[1]
        values["cross", "Memory over the baseline", part] = gb / BASELINE_5[0]
    for (billions, gpus), (deep, moesys) in TABLE_6.items():
        values["inference", "MoESys over DeepSpeed", f"{billions:g} B, {gpus} GPUs"] = moesys / deep
    values["inference", "Memory that the ring saves, at least", "58.2 B, 16 GPUs"] = 0.30
    return values


VALUES = _values()


def published() -> Published:
    """Return all published values."""
    return Published(VALUES, SOURCE)
