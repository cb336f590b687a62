"""How to extend a trained model: the transform on several rotaries against YaRN, NTK and others.

    sia reproduce extension-choice       rotary, tau and mean, with other seeds and text than reported
    sia reproduce extension              loss, untrained and after 1 and 10 % of the tokens
    sia reproduce extension-strings      repeated random strings that untrained models continue
    sia reproduce extension-needles      needles that models find after fine-tuning
    sia reproduce table4                 the paper's Table 4: its schemes, among the Llamas of extension

Models of three families are trained with RoPE: a Llama without QK-norm, a Qwen 3 with it, and a GPT-NeoX
with a partial rotary. Each is converted in several ways and evaluated at 1, 4 and 16 times its training
length. A model is trained once, whatever is measured of it. Everything together takes about four hours
of one core with AVX-512.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...arguments import did_you_mean
from ...huggingface.continued_pretraining import PretrainingRecipe
from .catalogue import SELECTION_SEED
from .conversions import ConversionConfig, ConversionTrial, NeedleTuning
from .evaluations import Evaluation, LossEvaluation, NeedleEvaluation, StringEvaluation

LENGTH = 256
LONGEST_FACTOR = 16
SHARED = {
    "vocab_size": 256,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": LENGTH,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "llama": {**SHARED, "intermediate_size": 352},
    "qwen3": {**SHARED, "intermediate_size": 352, "head_dim": 32, "num_key_value_heads": 4},
    "gpt_neox": {**SHARED, "intermediate_size": 512},
}
FIRST = PretrainingRecipe(
    tokens=2_000 * 16 * LENGTH,
    length=LENGTH,
    batch_size=16,
    learning_rate=3e-3,
    schedule="cosine",
    warmup_steps=30,
    weight_decay=0.1,
    checkpoint_every=250,
)
# With AdamW alone, models of this size do not learn to copy from their context in so few steps.
MATRIX_RATE = 0.02
# The paper's rate is too low for so few steps of so small a model.
CONTINUED = PretrainingRecipe(
    tokens=FIRST.tokens // 10,
    length=LENGTH,
    batch_size=16,
    learning_rate=1e-3,
    schedule="linear",
    warmup_steps=3,
    checkpoint_every=100,
)
# As the miniature of Table 2, with half the batch.
NEEDLES = NeedleTuning(
    replace(CONTINUED, tokens=300 * 16 * LENGTH, warmup_steps=30),
    {"needles": 1, "digits": 7},
    first_length=80,
    growth_steps=200,
)
# Shares of the first training's tokens that a model is fine-tuned for.
SHARES = (0.0, 0.01, 0.1)
UNTRAINED, TRAINED = SHARES[:1], SHARES[1:]
LENGTHS = (LENGTH, 4 * LENGTH, LONGEST_FACTOR * LENGTH)
LOSSES = LossEvaluation(LENGTHS, 65_536)
STRINGS = StringEvaluation(LENGTHS, examples=32, letters=32, prefix=16)
FOUND = NeedleEvaluation(LENGTHS, examples=50)


@dataclass(frozen=True)
class Variant:
    """A way to convert a model, with the `title` of its row; other fields as in ``ConversionConfig``.

    `shares` are those that losses are measured at, in models of `families`. `compared` says whether it
    is a row of the tables of extensions, not of Table 4 alone.
    """

    title: str
    scheme: str = "rope"
    rotary: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    calibrated: bool = False
    with_mean: bool = False
    by_length: bool = False
    factor: int = LONGEST_FACTOR
    shares: Sequence[float] = SHARES
    families: Sequence[str] = tuple(FAMILIES)
    compared: bool = True


def _transform(rotary: str, tau: float, title: str = "", **fields: Any) -> Variant:
    options = {"tau": tau, **fields.pop("options", {})}
    title = title or f"the transform on {rotary}, tau {tau:g}"
    return Variant(title, "scale-invariant-rope", rotary, options, calibrated=True, **fields)


def _in_table4(title: str, scheme: str, **options: Any) -> Variant:
    return Variant(
        title, scheme, options=options, shares=(0.1,), families=("llama",), compared=False
    )


BASE = {"base": 16.0}
# The variants that extension-choice recommends for each family, without fine-tuning and with it.
RECOMMENDED: Mapping[str, str] = {
    "llama": "transform-slow-beyond",
    "qwen3": "transform-slow-beyond",
    "gpt_neox": "transform-dynamic",
}
RECOMMENDED_TUNED: Mapping[str, str] = {
    "llama": "transform-yarn",
    "qwen3": "transform-slow-mean",
    "gpt_neox": "transform-slow",
}
YARN, AS_TRAINED = ("yarn", "yarn-by-length"), "rope"
VARIANTS: Mapping[str, Variant] = {
    AS_TRAINED: Variant("RoPE, as trained"),
    "ntk-by-length": Variant("NTK by length", rotary="dynamic", shares=UNTRAINED),
    "yarn": Variant("YaRN", rotary="yarn"),
    "yarn-by-length": Variant("YaRN by length", rotary="yarn", by_length=True, shares=UNTRAINED),
    "slow": Variant("slow, without the transform", rotary="slow", shares=(0.0, 0.1)),
    "slow-beyond": Variant(
        "slow-beyond, without the transform", rotary="slow-beyond", shares=UNTRAINED
    ),
    "p-rope": Variant("p-RoPE", "p-rope", options=BASE, shares=TRAINED),
    "logn-rope": Variant("LogN+RoPE", "logn-rope", shares=TRAINED),
    "alibi": Variant("ALiBi", "alibi", shares=TRAINED),
    "paper": Variant(
        "the paper's conversion",
        "scale-invariant-p-rope",
        options={**BASE, "tau": 10.0},
        shares=TRAINED,
    ),
    "transform-slow-beyond": _transform("slow-beyond", 30.0, shares=UNTRAINED),
    "transform-dynamic": _transform("dynamic", 30.0, shares=UNTRAINED),
    "transform-slow-30": _transform("slow", 30.0, shares=UNTRAINED),
    "transform-slow": _transform("slow", 3.0, shares=TRAINED),
    "transform-slow-mean": _transform(
        *("slow", 10.0, "the transform on slow, tau 10, with the mean"),
        with_mean=True,
        shares=TRAINED,
    ),
    "transform-yarn": _transform("yarn", 30.0),
    "yarn-4": Variant("YaRN", rotary="yarn", factor=4, shares=UNTRAINED),
    "transform-slow-beyond-4": _transform("slow-beyond", 30.0, factor=4, shares=UNTRAINED),
    "nope": _in_table4("NoPE", "nope"),
    "logn-p-rope": _in_table4("LogN+p-RoPE", "logn-p-rope", **BASE),
    "logn-ntk": _in_table4("LogN+NTK", "logn-ntk"),
}
# The variant that is a row of the paper's Table 4, and the share of tokens for which it is fine-tuned.
TABLE4: Mapping[str, tuple[str, float]] = {
    "rope": (AS_TRAINED, 0.0),
    "p-rope": ("p-rope", 0.1),
    "nope": ("nope", 0.1),
    "rope-ntk": ("ntk-by-length", 0.0),
    "yarn": ("yarn", 0.1),
    "logn-rope": ("logn-rope", 0.1),
    "logn-p-rope": ("logn-p-rope", 0.1),
    "logn-ntk": ("logn-ntk", 0.1),
    "alibi": ("alibi", 0.1),
    "scale-invariant-p-rope": ("paper", 0.1),
}
WITH_STRINGS = (
    *(AS_TRAINED, "ntk-by-length", *YARN, "slow-beyond"),
    *("transform-slow-beyond", "transform-dynamic", "transform-slow-30"),
)
WITH_NEEDLES = (AS_TRAINED, "yarn", "alibi", "paper", *RECOMMENDED_TUNED.values())


def recommended(family: str, share: float) -> str:
    """The variant recommended for a family that is fine-tuned for a share of its tokens, or not."""
    return (RECOMMENDED_TUNED if share else RECOMMENDED)[family]


def _choices() -> dict[str, Variant]:
    """The candidates: rotaries, values of tau by factor, spreads over heads, and the mean."""
    found = [
        Variant("RoPE, as trained"),
        Variant("YaRN alone", rotary="yarn"),
        *(_candidate(rotary, 10.0) for rotary in ("own", "ntk", "llama3")),
        *(
            _candidate(rotary, tau)
            for rotary in ("slow-beyond", "yarn-beyond", "dynamic")
            for tau in (10.0, 30.0)
        ),
        *(_candidate("slow", tau) for tau in (1.0, 100.0)),
        *(_candidate("slow", tau, ", factor 4", factor=4) for tau in (1.0, 3.0, 10.0, 30.0)),
    ]
    found = [replace(it, shares=UNTRAINED) for it in found]
    tuned: dict[str, Any] = {"shares": (0.0, 0.1)}
    found += [
        _candidate(rotary, tau, **tuned) for rotary in ("slow", "yarn") for tau in (3.0, 10.0, 30.0)
    ]
    found += [
        _candidate("slow", low, f" to {high:g}", options={"highest_tau": high}, **tuned)
        for low, high in ((3.0, 30.0), (10.0, 100.0))
    ]
    found.append(_candidate("slow", 10.0, ", with the mean", with_mean=True, **tuned))
    return {it.title.replace(",", "").replace(" ", "-").lower(): it for it in found}


def _candidate(rotary: str, tau: float, more: str = "", **fields: Any) -> Variant:
    return _transform(rotary, tau, f"{rotary}, tau {tau:g}{more}", **fields)


# What is chosen between before any of it is reported, and the model that costs are measured against.
CHOICES: Mapping[str, Variant] = _choices()
BASELINE = "rope-as-trained"
Changes = Mapping[str, Any] | None


def reported_trials(
    scale: str = "mini",
    names: Sequence[str] = (),
    seeds: Sequence[int] = (0, 1, 2),
    evaluation: Changes = None,
    families: Sequence[str] = (),
) -> list[ConversionTrial]:
    """The trials of the tables of loss; the first training of a family and a seed is shared.

    >>> for trial in reported_trials(names=("yarn",), seeds=(0,))[:3]:
    ...     print(trial.name, *trial.training_steps.values())
    extension-llama-yarn-0-seed-0 2000
    extension-llama-yarn-1-seed-0 2000 20
    extension-llama-yarn-10-seed-0 2000 200
    """
    measured = LOSSES.changed(evaluation)
    return _trials("extension", VARIANTS, scale, names, seeds, families, measured)


def choice_trials(
    scale: str = "mini",
    names: Sequence[str] = (),
    seeds: Sequence[int] = (SELECTION_SEED,),
    evaluation: Changes = None,
    families: Sequence[str] = (),
) -> list[ConversionTrial]:
    """The candidates, with seeds and validation text that :func:`reported_trials` does not use.

    >>> choice_trials(names=("slow-tau-3",))[0].name, choice_trials()[0].evaluation.skip
    ('extension-choice-llama-slow-tau-3-0-seed-3', 65536)
    """
    measured = LOSSES.changed({"skip": LOSSES.tokens, **(evaluation or {})})
    return _trials("extension-choice", CHOICES, scale, names, seeds, families, measured)


def string_trials(
    scale: str = "mini",
    names: Sequence[str] = (),
    seeds: Sequence[int] = (0, 1, 2),
    evaluation: Changes = None,
    families: Sequence[str] = (),
) -> list[ConversionTrial]:
    """Repeated strings, continued by models that are not fine-tuned.

    >>> string_trials(names=("rope",), seeds=(0,))[0].name
    'extension-strings-llama-rope-0-seed-0'
    """
    known = {name: replace(VARIANTS[name], shares=UNTRAINED) for name in WITH_STRINGS}
    measured = STRINGS.changed(evaluation)
    return _trials("extension-strings", known, scale, names, seeds, families, measured)


def needle_trials(
    scale: str = "mini",
    names: Sequence[str] = (),
    seeds: Sequence[int] = (0, 1, 2),
    evaluation: Changes = None,
    families: Sequence[str] = (),
) -> list[ConversionTrial]:
    """Needles, found by the models that continued for a tenth of the tokens and then saw the task.

    >>> needle_trials(names=("yarn",), seeds=(0,))[0].training_steps
    {'extension-llama-first-seed-0': 2000, 'extension-llama-yarn-10-seed-0': 200,
     'extension-needles-llama-yarn-10-seed-0': 300}
    """
    known = {}
    for name in WITH_NEEDLES:
        variant = VARIANTS[name]
        # The transform as it is recommended for each family; its rivals in all.
        measured_in = [
            it for it in FAMILIES if not variant.calibrated or RECOMMENDED_TUNED[it] == name
        ]
        known[name] = replace(variant, shares=(0.1,), families=measured_in)
    measured = FOUND.changed(evaluation)
    return [
        replace(trial, config=replace(trial.config, needles=NEEDLES))
        for trial in _trials("extension-needles", known, scale, names, seeds, families, measured)
    ]


def table4_trials(
    scale: str = "mini", names: Sequence[str] = (), seeds: Sequence[int] = (0, 1, 2)
) -> list[ConversionTrial]:
    """The trials of Table 4, which are among those of :func:`reported_trials`.

    >>> [trial.name for trial in table4_trials(names=("rope", "alibi"), seeds=(0,))]
    ['extension-llama-rope-0-seed-0', 'extension-llama-alibi-10-seed-0']
    """
    _check_names("scheme", names, TABLE4)
    known = {
        variant: replace(VARIANTS[variant], shares=(share,))
        for scheme, (variant, share) in TABLE4.items()
        if not names or scheme in names
    }
    return _trials("extension", known, scale, (), seeds, ("llama",), LOSSES)


def _trials(
    prefix: str,
    known: Mapping[str, Variant],
    scale: str,
    names: Sequence[str],
    seeds: Sequence[int],
    families: Sequence[str],
    evaluation: Evaluation,
) -> list[ConversionTrial]:
    """The trials of all families and variants, seed by seed."""
    if scale != "mini":
        raise ValueError(f"models of transformers have the scale mini alone, got {scale!r}")
    _check_names("candidate", names, known)
    _check_names("family", families, FAMILIES)
    return [
        ConversionTrial(f"{prefix}-{config.name}", config, _up_to(config.factor, evaluation))
        for seed in seeds
        for family in families or FAMILIES
        for name in names or known
        if family in known[name].families
        for share in known[name].shares
        for config in [_config(family, name, known[name], share, seed)]
    ]


def _up_to(factor: float, evaluation: Evaluation) -> Evaluation:
    """The evaluation without the lengths that a factor is not meant for."""
    if factor == LONGEST_FACTOR:
        return evaluation
    return replace(evaluation, lengths=tuple(n for n in evaluation.lengths if n <= factor * LENGTH))


def _check_names(noun: str, names: Sequence[str], known: Mapping[str, Any]) -> None:
    for name in names:
        if name not in known:
            hint, those = did_you_mean(name, known), ", ".join(known)
            raise ValueError(f"there is no {noun} {name!r}{hint}; there are: {those}")


def _config(family: str, name: str, variant: Variant, share: float, seed: int) -> ConversionConfig:
    continued = replace(CONTINUED, tokens=round(share * FIRST.tokens)) if share else None
    return ConversionConfig(
        family=family,
        variant=name,
        share=share,
        seed=seed,
        scheme=variant.scheme,
        scheme_options=dict(variant.options),
        rotary=variant.rotary,
        factor=variant.factor,
        calibrated=variant.calibrated,
        with_mean=variant.with_mean,
        by_length=variant.by_length,
        model=dict(FAMILIES[family]),
        first=FIRST,
        matrix_rate=MATRIX_RATE,
        continued=continued,
        needles=None,
    )
