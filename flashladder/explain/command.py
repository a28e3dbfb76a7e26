"""``invoke explain 16 --gpu a100``: what binds a kernel on a GPU, and how fast the model says it is.

Why: a step changes the instruction stream, and the same stream is bound by other things on other GPUs. Nothing here was
measured on the GPU that is asked for, unless a line says so: a prediction is marked as one (docs/explain.md tells its
errors).
"""

from __future__ import annotations

import json
import textwrap

from flashladder.arguments import within
from flashladder.columns import table, terminal_width
from flashladder.errors import FlashladderError
from flashladder.explain.predict import (
    BATCH,
    HEADS,
    NAME,
    Prediction,
    kernel_of,
    known,
    load_predictions,
    predict,
    worth,
)
from flashladder.explain.simulate import SCHEDULERS
from flashladder.ladder.ablation import load_description
from flashladder.ladder.gpus import load_gpus
from flashladder.ladder.selection import one_config
from flashladder.located import closest
from flashladder.paths import RESULTS

SHOWN_FROM = 0.005  # share of a scheduler's clocks: shorter waits are not listed


def show(description: str, gpu: str, config: str | None, seq_len: int, *, as_json: bool = False) -> None:
    """Prints the prediction of one kernel on one GPU."""
    prediction = explain(description, gpu, config, within("seq-len", seq_len))
    print(json.dumps(document(prediction), indent=2) if as_json else text(prediction, terminal_width()))


def explain(description: str, key: str, config: str | None, seq_len: int) -> Prediction:
    """What the model says of an iteration or an ablation on a GPU.

    Raises:
        FlashladderError: no such iteration, GPU or configuration; else as `predict`.
    """
    gpu = load_gpus().get(key)
    if gpu is None:
        raise FlashladderError(
            "no such GPU", expected=", ".join(load_gpus()), found=repr(key), hint=closest(key, list(load_gpus()))
        )
    iteration = load_description(description)
    iteration.family.require_alike("explain")
    arch = iteration.family.targets.serving(gpu.arch)
    if not arch:
        built = ", ".join(iteration.family.targets.arches)
        what = f"iteration {iteration.description} is not built for the {gpu.title}"
        raise FlashladderError(what, expected=gpu.arch, found=built)
    chosen = one_config(iteration, config or gpu.configs_of)
    if excess := gpu.excess(chosen):
        raise FlashladderError(f"the configuration is too large for {key}", expected=excess[0], found=excess[1])
    return predict(kernel_of(iteration, chosen, arch), gpu, seq_len)


def document(prediction: Prediction) -> dict[str, object]:
    """The prediction for scripts, with what was measured or published beside it."""
    told, step = actual(prediction), worth_of(prediction)
    return {
        "gpu": prediction.gpu.gpu,
        "seq_len": prediction.seq_len,
        **prediction.data.model_dump(),
        "limited_by": list(prediction.occupancy.limited_by),
        "warps": prediction.occupancy.warps,
        "warps_to_hide": round(prediction.warps_to_hide, 3),
        "votes": prediction.kernel.votes,
        "step": None if step is None else {"parent": step[0], "percent_faster": round(step[1], 3)},
        "conflicts": round(prediction.kernel.conflicts, 6),
        "anchor": None if prediction.anchor is None else vars(prediction.anchor),
        **({told[0]: told[1]} if told else {}),
    }


def is_a_step(prediction: Prediction) -> bool:
    """Whether it is of an iteration in the configuration that the GPU gives it."""
    kernel = prediction.kernel
    own = kernel.iteration.configs[prediction.gpu.configs_of]
    return not kernel.iteration.is_ablation and own.short_form() == kernel.config.short_form()


def worth_of(prediction: Prediction) -> tuple[int, float] | None:
    """The step before it, as the committed predictions have that one, and by how many percent it is faster."""
    if not (is_a_step(prediction) and (RESULTS / NAME).is_file()):
        return None
    committed = load_predictions()
    same = prediction.seq_len == committed.seq_len
    return worth(committed, prediction.gpu.gpu, prediction.data) if same else None


def actual(prediction: Prediction) -> tuple[str, float] | None:
    """``measured`` or ``published``, and that percentage of FA2; None where there is neither."""
    if prediction.kernel.iteration.is_ablation:
        return None
    data = prediction.data
    what, found = known(prediction.gpu, (data,), prediction.seq_len)
    same = what == "measured" or prediction.gpu.configs_of == prediction.gpu.gpu
    own = prediction.kernel.iteration.configs.get(prediction.gpu.gpu)
    if what == "published" and own is not None and own.short_form() != data.config:
        return None
    return (what, found[data.iteration]) if same and data.iteration in found else None


def text(prediction: Prediction, width: int) -> str:
    """The prediction for people."""
    kernel, gpu = prediction.kernel, prediction.gpu
    launch = f"S = {prediction.seq_len}, batch {BATCH}, {HEADS} heads"
    head = f"Iteration {kernel.iteration.description} on {gpu.title}, {launch}: {kernel.config.short_form()}"
    rows = [("one KV block of one CTA", "asks for", "clocks", "share")]
    for one in sorted(prediction.resources, key=lambda one: -one.clocks):
        share = f"{100 * one.clocks / prediction.data.clocks:.0f} %"
        rows.append((one.name, f"{one.count:,.0f} {one.unit}", f"{one.clocks:,.0f}", share))
    rows.append(("predicted", "", f"{prediction.data.clocks:,.0f}", "100 %"))
    lines = [head, "", *table(rows, None, right={2, 3}), "", *_story(prediction), "", *_verdict(prediction)]
    wrapped = (textwrap.wrap(one, width, subsequent_indent="  ") if len(one) > width else [one] for one in lines)
    return "\n".join(line for some in wrapped for line in some)


def _story(prediction: Prediction) -> list[str]:
    data, occupancy = prediction.data, prediction.occupancy
    waits = [f"{why} {100 * share:.0f} %" for why, share in data.idle.items() if share >= SHOWN_FROM]
    told = {
        "binding": data.binding,
        "occupancy": f"{occupancy.ctas} CTA{'s' * (occupancy.ctas != 1)}, {occupancy.warps} warps on an SM; limited by "
        + ", ".join(occupancy.limited_by),
        "chain": f"{data.chain:,.0f} clocks of dependences in a KV block; a warp alone on its scheduler "
        f"takes {data.alone:,.0f}: {prediction.warps_to_hide:.1f} on each would hide that, there are "
        f"{occupancy.warps / SCHEDULERS:g}",
        "waits": f"schedulers issue nothing: {', '.join(waits) or 'never'}",
        "overhead": f"{data.overhead:,.0f} clocks of a CTA beside its KV blocks; waves {data.waves:.3f}",
    }
    if prediction.kernel.conflicts > 1:
        told["conflicts"] = (
            f"{prediction.kernel.conflicts:.1f} wavefronts where one would do, in loads from shared memory"
        )
    if votes := prediction.kernel.votes:
        which = "the vote" if votes == 1 else f"{votes} votes"
        told["assumed"] = f"no lane asks in {which} of a KV block, so that what stands behind is left out"
    return [f"{name:<11} {words}" for name, words in told.items()]


def _verdict(prediction: Prediction) -> list[str]:
    data = prediction.data
    fa2, told = data.percent_of_fa2, actual(prediction)
    speed = f"predicted   {data.tflops:.0f} TFLOP/s, {data.percent_of_peak:.0f} % of the peak"
    if fa2 is None or prediction.anchor is None:
        lines = [f"{speed} at the boost clock; FA2 was neither measured nor published there"]
    else:
        lines = [f"{speed}, {fa2:.0f} % of FA2 (FA2: {prediction.anchor.source})"]
    if step := worth_of(prediction):
        lines.append(f"step        {step[1]:+.1f} % over iteration {step[0]}, both predicted")
    if told and fa2 is not None:
        lines.append(f"{told[0]:<11} {told[1]:.1f} % of FA2: the prediction is off by {fa2 - told[1]:+.1f} points")
    elif not told and is_a_step(prediction):
        lines.append(f"measured    nothing: no timing of it on the {prediction.gpu.title} at this length is known here")
    return lines
