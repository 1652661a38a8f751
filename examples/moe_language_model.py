"""Write two generated languages, an easy and a hard one: a small GPT-like transformer whose feed-forward
networks are mixtures of experts.

Easy passages tell of animals in sentences of one pattern. Hard ones are sums and products, whose last word
has to be computed, and nested brackets, which have to be closed in order. The adaptive gate gives a second
expert to the words of which it is not sure.

Hyperparameters (defaults in brackets): `global_batch_size`, `learning_rate` [0.003], `width` [128], `hidden`
[512], `layers` [2], `heads` [4], `experts` [8], `gate` [adaptive; or top1, top2, dense], `threshold` [0.1],
`tiers` [none; or auto], `passages` [4096], `hard_share` [0.3].
"""

from __future__ import annotations

import random
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from punctual import TrainingFunction
from punctual.moe import Adaptive, MoELayer, TopK, balance_loss, routing_counts

LENGTH = 32
HELD_OUT = 256
#: Of one answer, where no sentence ends before.
ANSWER_WORDS = 16

#: What each animal does.
VERBS = {"cat": "sees", "dog": "hears", "fox": "hunts", "owl": "finds", "cow": "likes", "hen": "fears"}
ADJECTIVES = ("small", "old", "red", "wild")
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
BRACKETS = {"(": ")", "[": "]", "<": ">", "{": "}"}
#: Brackets that a sentence opens.
PAIRS = 4
WORDS = (
    "the", ".", "plus", "times", "is", *VERBS, *VERBS.values(), *ADJECTIVES, *DIGITS, *BRACKETS,
    *BRACKETS.values(),
)  # fmt: skip
IDS = {word: number for number, word in enumerate(WORDS)}


def read_words(text: Any) -> list[int]:
    """Places in `WORDS` of a text's words. Raises ValueError for a text that is not of these languages."""
    if not isinstance(text, str) or not text.split():
        raise ValueError('an input is a text, such as "three plus four is"')
    words = text.lower().split()
    if unknown := [word for word in words if word not in IDS]:
        raise ValueError(f"unknown word {unknown[0][:40]!r}; the words are: {' '.join(WORDS)}")
    return [IDS[word] for word in words]


def easy_sentence(draw: random.Random) -> list[str]:
    """An animal does to another one what animals of its kind do."""
    subject, other = draw.choice(list(VERBS)), draw.choice(list(VERBS))
    return ["the", draw.choice(ADJECTIVES), subject, VERBS[subject], "the", other, "."]


def hard_sentence(draw: random.Random) -> list[str]:
    """The last digit of a sum or a product, or brackets within brackets."""
    if draw.random() < 0.5:
        left, right, sign = draw.randrange(10), draw.randrange(10), draw.choice(("plus", "times"))
        result = left + right if sign == "plus" else left * right
        return [DIGITS[left], sign, DIGITS[right], "is", DIGITS[result % 10], "."]
    words: list[str] = []
    closing: list[str] = []
    opened = 0
    while opened < PAIRS or closing:
        if opened < PAIRS and (not closing or draw.random() < 0.5):
            words.append(draw.choice(list(BRACKETS)))
            closing.append(BRACKETS[words[-1]])
            opened += 1
        else:
            words.append(closing.pop())
    return [*words, "."]


class Passages(Dataset[Tensor]):
    """Passages of `LENGTH + 1` words, each in one language; the same for the same seed."""

    def __init__(self, count: int, seed: int, hard_share: float) -> None:
        draw = random.Random(seed)
        self.is_hard = torch.tensor([draw.random() < hard_share for _ in range(count)])
        self.words = torch.tensor([self.write(draw, is_hard) for is_hard in self.is_hard.tolist()])

    @staticmethod
    def write(draw: random.Random, is_hard: bool) -> list[int]:
        """Draw one passage, as places in `WORDS`."""
        words: list[str] = []
        while len(words) <= LENGTH:
            words += hard_sentence(draw) if is_hard else easy_sentence(draw)
        return [IDS[word] for word in words[: LENGTH + 1]]

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> Tensor:
        return self.words[index]

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        return list(self.words[indices])


class Block(nn.Module):
    """Masked self-attention and a feed-forward network, each after a LayerNorm and around a residual
    connection."""

    def __init__(self, width: int, heads: int, network: nn.Module) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attention_output = nn.Linear(width, width)
        self.before_network = nn.LayerNorm(width)
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Transform a batch of sequences."""
        batch, length, width = x.shape
        joined = self.queries_keys_values(self.before_attention(x))
        split = joined.view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(split[0], split[1], split[2], is_causal=True)
        x = x + self.attention_output(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.network(self.before_network(x))


class LanguageModel(nn.Module):
    """Predicts the next word at every place."""

    def __init__(self, width: int, heads: int, networks: list[nn.Module]) -> None:
        super().__init__()
        self.words = nn.Embedding(len(WORDS), width)
        self.places = nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, heads, network) for network in networks))
        self.output_norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, len(WORDS))
        for part in (self.words, self.places):
            nn.init.normal_(part.weight, std=0.02)

    def forward(self, words: Tensor) -> Tensor:
        """Scores of the next word, of shape (batch, length, words)."""
        places = torch.arange(words.shape[1], device=words.device)
        return self.output(self.output_norm(self.blocks(self.words(words) + self.places(places))))


class MoELanguageModel(TrainingFunction):
    """Learns both languages, and how many experts each word needs."""

    speed_neutral = {"learning_rate"}

    def init_model(self) -> nn.Module:
        asked = self.hyperparameters
        width, hidden = int(asked.get("width", 128)), int(asked.get("hidden", 512))
        experts, threshold = int(asked.get("experts", 8)), float(asked.get("threshold", 0.1))
        gates = {"top1": TopK(1), "top2": TopK(2), "adaptive": Adaptive(threshold)}
        gate = str(asked.get("gate", "adaptive"))
        tiers: Literal["auto"] | None = "auto" if asked.get("tiers") == "auto" else None

        def network() -> nn.Module:
            if gate == "dense":
                return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))
            return MoELayer(width, hidden, experts, gates[gate], tiers=tiers)

        networks = [network() for _ in range(int(asked.get("layers", 2)))]
        return LanguageModel(width, int(asked.get("heads", 4)), networks)

    def init_dataset(self) -> Dataset[Any]:
        hard_share = float(self.hyperparameters.get("hard_share", 0.3))
        self.held_out = Passages(HELD_OUT, seed=1, hard_share=hard_share)
        return Passages(int(self.hyperparameters.get("passages", 4096)), seed=0, hard_share=hard_share)

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            model.parameters(), lr=float(self.hyperparameters.get("learning_rate", 0.003)), weight_decay=0.01
        )

    def init_scheduler(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))

    def train(self, batch: Any, model: nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
        loss = self.loss(model(batch[:, :-1]), batch[:, 1:])
        return loss + balance_loss(model), {"cross_entropy": loss}

    @staticmethod
    def loss(scores: Tensor, following: Tensor) -> Tensor:
        """Mean cross-entropy per word, in nats."""
        return functional.cross_entropy(scores.flatten(0, 1), following.flatten())

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        found = {}
        for language, is_member in (("easy", ~self.held_out.is_hard), ("hard", self.held_out.is_hard)):
            words = self.held_out.words[is_member].to(next(model.parameters()).device)
            routing_counts(model)  # starts to count anew
            found[f"{language}_loss"] = self.loss(model(words[:, :-1]), words[:, 1:]).item()
            counts = routing_counts(model).values()
            if counts:
                shares = [layer.two_expert_share for layer in counts]
                found[f"{language}_two_expert_share"] = sum(shares) / len(shares)
        return found

    def predict(self, batch: list[Any], model: nn.Module) -> list[str]:
        """Continue texts to the end of a sentence, with the likeliest word each time."""
        texts = [read_words(text) for text in batch]
        answers: list[list[str]] = [[] for _ in texts]
        device = next(model.parameters()).device
        for _ in range(ANSWER_WORDS):
            contexts = [torch.tensor(words[-LENGTH:]) for words in texts]
            ends = torch.tensor([len(context) - 1 for context in contexts])
            # What stands behind a text changes nothing before it.
            scores = model(nn.utils.rnn.pad_sequence(contexts, batch_first=True).to(device))
            following = scores[torch.arange(len(texts)), ends].argmax(1).tolist()
            for words, answer, word in zip(texts, answers, following, strict=True):
                words.append(word)
                if answer[-1:] != ["."]:
                    answer.append(WORDS[word])
            if all(answer[-1] == "." for answer in answers):
                break
        return [" ".join(answer) for answer in answers]
