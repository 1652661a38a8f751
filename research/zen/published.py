"""Published values of Zen's evaluation, by figure, series and place: ratios, shares and megabytes."""

from __future__ import annotations

from research.figure import Published

SOURCE = "Zen (Z. Wang, Rice University 2023, chapter 3), text and figures"

AT_16 = "16 machines, 25 Gbps"
TRAIN_25, TRAIN_100 = "25 Gbps, V100", "100 Gbps, A100"

VALUES: dict[tuple[str, str, str], float] = {
    ("characteristics", "Density after 128 GPUs", "BERT"): 0.408,
    ("characteristics", "Skewness, 128 parts", "LSTM"): 70.0,
    ("schemes", "Balanced Parallelism over dense", "NMT, 128 GPUs"): 0.64,
    ("schemes", "AGsparse crosses dense, GPUs", "NMT"): 40.0,
    ("schemes", "Dense all-reduce of the embedding, ms", "DeepFM, 128 GPUs, 100 Gbps"): 150.0,
    ("hashing", "Loss of one hash", "memory of the tensor's size, density 20 %"): 0.158,
    ("hashing", "Loss of one hash", "2|G|"): 0.09,
    ("hashing", "Loss of one hash", "8|G|"): 0.01,
    ("hashing", "Without a slot", "4 functions"): 0.01,
    ("hashing", "Memory over non-zeros", "all partitions"): 2.0,
    ("balance", "Imbalance with Zen, at most", "DeepFM"): 1.1,
    ("formats", "Hash bitmaps, MB", "856 MB"): 27.0,
    ("formats", "Bitmaps of 16 servers, MB", "856 MB"): 428.0,
    ("formats", "Dense over values", "BERT, 128 GPUs"): 2.5,
    ("formats", "Dense over COO", "BERT, 128 GPUs"): 1.2,
    ("embeddings", "Zen over all-reduce", f"LSTM, {AT_16}"): 6.77,
    ("embeddings", "Zen over all-reduce", f"DeepFM, {AT_16}"): 2.10,
    ("embeddings", "Zen over all-reduce", f"NMT, {AT_16}"): 1.97,
    ("embeddings", "Zen over all-reduce", f"BERT, {AT_16}"): 3.0,
    ("embeddings", "Zen with COO alone over all-reduce", f"LSTM, {AT_16}"): 4.97,
    ("embeddings", "Zen with COO alone over all-reduce", f"BERT, {AT_16}"): 2.39,
    ("embeddings", "Gain of the hash bitmap", f"LSTM, {AT_16}"): 0.36,
    ("embeddings", "Gain of the hash bitmap", f"BERT, {AT_16}"): 0.26,
    ("embeddings", "OmniReduce over all-reduce, at most", AT_16): 1.58,
    ("embeddings", "Zen over SparCML, at most", AT_16): 1.82,
    ("embeddings", "Zen over OmniReduce, at most", AT_16): 4.09,
    ("embeddings", "Zen over the state of the art, at most", "all machines"): 5.09,
    ("training", "Zen over all-reduce", f"LSTM, {TRAIN_25}"): 3.1,
    ("training", "Zen over SparCML", f"LSTM, {TRAIN_25}"): 1.67,
    ("training", "Zen over OmniReduce", f"DeepFM, {TRAIN_25}"): 1.44,
    ("training", "Zen over OmniReduce", f"NMT, {TRAIN_25}"): 1.51,
    ("training", "Zen over all-reduce", f"BERT, {TRAIN_25}"): 1.13,
    ("training", "Zen over OmniReduce", f"BERT, {TRAIN_25}"): 1.07,
    ("training", "Zen over SparCML", f"LSTM, {TRAIN_100}"): 1.50,
    ("training", "Zen over all-reduce", f"DeepFM, {TRAIN_100}"): 1.46,
    ("training", "Zen over OmniReduce", f"DeepFM, {TRAIN_100}"): 1.34,
    ("training", "Zen over all-reduce", f"NMT, {TRAIN_100}"): 1.45,
    ("training", "Zen over OmniReduce", f"NMT, {TRAIN_100}"): 1.39,
    ("training", "Zen over the state of the art, at most", "all models and machines"): 2.48,
}


def published() -> Published:
    """Return all published values."""
    return Published(VALUES, SOURCE)
