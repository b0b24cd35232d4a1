# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""A `transformers` model whose `generate` runs compiled steps and refuses some options.

The served model is an instance of a subclass of the original model's class. The served model shares
the original model's modules and weights. But the served model has its own attributes, so `generate`
does not change any attribute that entries depend on. As in the original model, `generate` chooses
tokens and decides when to stop. Only the calls to the model go to compiled steps.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast, Seq2SeqLMOutput
from transformers.utils.generic import ModelOutput

from serve_warm._package import PACKAGE
from serve_warm.errors import GenerationRefused
from serve_warm.generation import pictures
from serve_warm.generation.decoder import CachedDecoder
from serve_warm.generation.slots import Call, Slots
from serve_warm.generation.step_check import StepCheck
from serve_warm.generation.steps import CACHE, SlotCache
from serve_warm.private_apis.nn_module import is_table_of_hooks

Choose = Callable[[torch.Tensor], torch.Tensor]
"""Maps logits, of shape (rows, vocabulary), to tokens, of shape (rows,)."""

REFUSED_ARGUMENTS = {
    "assistant_model": "assisted decoding checks several tokens in one call",
    "custom_generate": "a custom loop makes calls that were not compiled",
    "inputs_embeds": "prompts are token ids",
}
"""Arguments of `generate` that the compiled steps do not support, each with the reason."""


@dataclass
class EncoderStates(ModelOutput):
    """Padded encoder states, with the length of each row.

    When `generate` repeats rows, it repeats states and lengths together.
    """

    last_hidden_state: torch.Tensor | None = None
    lengths: torch.Tensor | None = None


INPUTS = {
    *("input_ids", "attention_mask", "position_ids", "encoder_outputs"),
    *("decoder_input_ids", "decoder_attention_mask", "decoder_position_ids"),
    *("input_features", "logits_to_keep", "cache_position"),
}
"""Arguments that `generate` passes to the model, and that the steps support."""


UNKNOWN = {
    "mm_token_type_ids": "this model gives image tokens their own positions",
    "token_type_ids": "the model treats tokens of different types differently",
}
"""Arguments of some models that the compiled steps do not support, each with the reason."""

CACHE_NAMES = tuple(dict.fromkeys((CACHE, "past_key_values")))
"""Names under which a caller can pass a cache. `transformers` 5.24 still accepts the older name."""


class Rows(Cache):
    """The slots of one batch during generation.

    `generate` treats this object as the model's cache.
    """

    is_compileable = False  # otherwise `generate` makes masks and compiles by itself
    is_croppable = False

    def __init__(self, decoder: CachedDecoder, buffers: SlotCache) -> None:
        super().__init__(layers=[])
        self.decoder, self.buffers = decoder, buffers
        self.slots: list[int] = []
        self.lengths: list[int] = []
        """Number of tokens that each row has in its slot, without padding."""
        self.seen = 0
        """Number of tokens in each row, padding included, as `generate` counts them."""
        self.is_open = True

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of tokens in each row, padding included."""
        del layer_idx
        return self.seen

    # Whisper's `generate` splits each output into rows, and also splits the cache (5.24).

    @property
    def self_attention_cache(self) -> Any:
        """Copies of the rows' self-attention cache."""
        return self._copy(self.buffers.layers)

    @property
    def cross_attention_cache(self) -> Any:
        """Copies of the rows' cross-attention cache."""
        return self._copy(self.buffers.cross)

    def _copy(self, layers: Any) -> Any:
        def copy_of(layer: Any) -> Any:
            return SimpleNamespace(keys=layer.keys[self.slots], values=layer.values[self.slots])

        return SimpleNamespace(layers=[copy_of(layer) for layer in layers])

    def begin(self, count: int, seen: int) -> None:
        """Take slots for `count` rows."""
        self.slots = self.decoder.take(count)
        self.seen = seen

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """Add one token to each row; return the logits, of shape (rows, vocabulary).

        Raises:
            GenerationRefused: the model changed too much after the slots were filled.
        """
        for why in self.decoder.find_changed(self.slots).values():
            raise why
        newest = {
            slot: (token, length)
            for slot, token, length in zip(self.slots, tokens, self.lengths, strict=True)
        }
        logits = self.decoder.decode(newest)[self.slots]
        # Another thread may have changed the adapter meanwhile.
        for why in self.decoder.find_changed(self.slots).values():
            raise why
        self.lengths = [length + 1 for length in self.lengths]
        self.seen += 1
        return logits

    def close(self) -> None:
        """Give the slots back."""
        self.is_open = False
        slots, self.slots = self.slots, []
        self.decoder.release(slots)


class CompiledGeneration:
    """The part of a served model that sends calls to the compiled steps."""

    # `serve` sets these attributes.
    _serve_warm_decoder: CachedDecoder
    _serve_warm_buffers: SlotCache
    _serve_warm_local: threading.local
    _serve_warm_check: StepCheck
    _serve_warm_describe_copy: Callable[[CompiledGeneration], tuple[Any, ...]]

    def __copy__(self) -> CompiledGeneration:
        # A shallow copy shares the model, the steps and their cache.
        other: CompiledGeneration = object.__new__(type(self))
        vars(other).update(vars(self))
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        return self._serve_warm_describe_copy(self)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Generate as the original model does, but with compiled steps.

        Raises:
            GenerationRefused: the steps do not support an option, a prompt or a length. Other calls
            are not affected.
        """
        original: Any = super().generate  # type: ignore[misc]
        names = [*inspect.signature(original).parameters]
        if len(args) > len(names) or kwargs.keys() & {*names[: len(args)]}:
            return original(*args, **kwargs)  # raises TypeError
        kwargs = {**_by_name(names, args), **kwargs}
        for name, why in REFUSED_ARGUMENTS.items():
            if kwargs.get(name) is not None:
                raise _refused(f"{name}=", why)
        for name in CACHE_NAMES:
            if kwargs.get(name) is not None:
                raise self._foreign(kwargs[name])
        if kwargs.get("cache_implementation") == "static":
            del kwargs["cache_implementation"]
        self._check_steps()
        # A logits processor may call `generate` of the same model.
        local = self._serve_warm_local
        outer, local.rows = getattr(local, "rows", None), None
        try:
            return original(**kwargs)
        finally:
            self._close_rows()
            local.rows = outer

    def _check_steps(self) -> None:
        """Compare the steps with the model once, unless an artifact has their compiled code."""
        decoder = self._serve_warm_decoder
        if self._serve_warm_check.is_done or decoder.has_entries():
            return
        decoder.check_settings()  # after a change, the steps would differ
        self._serve_warm_check.check()

    def stream(
        self,
        input_ids: torch.Tensor,
        *,
        max_new_tokens: int,
        attention_mask: torch.Tensor | None = None,
        choose: Choose | None = None,
    ) -> Iterator[torch.Tensor]:
        """Yield the next token of each row, of shape (rows,), as soon as it exists.

        `choose` maps logits to tokens. By default, `choose` takes the token with the largest logit.
        Close the iterator, or leave the loop, to give the slots back early. Works only with
        decoder-only models.

        Raises:
            GenerationRefused: a prompt, a batch or a length does not fit.
        """
        decoder = self._serve_warm_decoder
        if self.config.is_encoder_decoder:  # type: ignore[attr-defined]
            raise _refused(
                "stream()", "it works only with decoder-only models; pass a streamer to generate"
            )
        if max_new_tokens < 1:
            raise GenerationRefused(
                f"A stream needs at least one new token, not max_new_tokens={max_new_tokens}."
            )
        decoder.check_length(input_ids.shape[1] + max_new_tokens)
        self._check_steps()
        rows = Rows(decoder, self._serve_warm_buffers)

        def chosen(logits: torch.Tensor) -> torch.Tensor:
            # Pass a copy: the logits are inference tensors, which `choose` could not change in
            # place.
            return logits.argmax(-1) if choose is None else choose(logits.clone())

        def made() -> Iterator[torch.Tensor]:
            try:
                tokens = chosen(_prefill(rows, input_ids, attention_mask))
                yield tokens
                for _ in range(max_new_tokens - 1):
                    tokens = chosen(rows.step(tokens.tolist()))
                    yield tokens
            finally:
                rows.close()

        return made()

    def continuous(self, *, call: Call) -> Slots:
        """Return continuous batches that use all slots, so no slots are left for `generate`.

        Raises:
            GenerationRefused: a batch is running, or all sequences of this model must begin
            together.
        """
        if self.config.is_encoder_decoder:  # type: ignore[attr-defined]
            raise _refused("continuous()", "it works only with decoder-only models")
        self._check_steps()
        return Slots(self._serve_warm_decoder, call=call)

    def get_encoder(self, *args: Any, **kwargs: Any) -> Any:
        """Return an encoder whose calls run the compiled step."""
        encoder = super().get_encoder(*args, **kwargs)  # type: ignore[misc]
        return _Encoder(encoder, self._serve_warm_decoder)

    def _serve_warm_call(
        self, original: Callable[..., Any], rows: Any, given: dict[str, Any]
    ) -> Any:
        """Return the result of a model call. If `generate` makes the call, run a compiled step."""
        if rows is None:
            return original(**{CACHE: None}, **given)  # not called by `generate`
        if not self._is_own(rows) or not rows.is_open:
            raise self._foreign(rows)
        _check_given(given)
        made: dict[str, Any] = {CACHE: rows}
        if self.config.is_encoder_decoder:  # type: ignore[attr-defined]
            return Seq2SeqLMOutput(logits=_encoder_decoder(rows, given)[:, None], **made)
        tokens = given["input_ids"]
        if not rows.slots:
            mask = given.get("attention_mask")
            _check_positions(tokens, mask, given.get("position_ids"))
            found = pictures.pictures_in(given)
            prompts = pictures.embed(self, tokens, found) if found else tokens
            logits = _prefill(rows, prompts, mask)
        else:
            logits = rows.step(_one_column(tokens))
        return CausalLMOutputWithPast(logits=logits[:, None], **made)

    # The next two methods override private methods of `GenerationMixin` (5.20, 5.24), whose other
    # arguments differ between versions.

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *_rest: Any, **_more: Any
    ) -> None:
        self._close_rows()
        _check_options(generation_config)
        decoder = self._serve_warm_decoder
        decoder.check_length(generation_config.max_length)
        rows = Rows(decoder, self._serve_warm_buffers)
        self._serve_warm_local.rows = rows
        model_kwargs[CACHE] = rows

    def _valid_auto_compile_criteria(self, *_args: Any, **_kwargs: Any) -> bool:
        return False

    def _is_own(self, cache: Any) -> bool:
        return isinstance(cache, Rows) and cache.decoder is self._serve_warm_decoder

    def _foreign(self, cache: Any) -> GenerationRefused:
        if self._is_own(cache):
            return GenerationRefused(
                "This cache belongs to a generation that has ended, so the cache cannot be used."
            )
        is_served = isinstance(cache, Rows)
        what = "the cache of another model" if is_served else f"a {type(cache).__name__}"
        return GenerationRefused(f"{CACHE} is {what}, but the compiled steps have their own cache.")

    def _close_rows(self) -> None:
        rows = getattr(self._serve_warm_local, "rows", None)
        if rows is not None:
            self._serve_warm_local.rows = None
            rows.close()


def serve(
    model: Any,
    decoder: CachedDecoder,
    buffers: SlotCache,
    check: StepCheck,
    describe_copy: Callable[[Any], tuple[Any, ...]],
) -> Any:
    """Return an object like `model`, but with a `generate` that uses `decoder`'s steps.

    `check` compares the steps with the model before they are compiled. `describe_copy` returns what
    `__reduce__` of the object has to return.
    """
    check.find_equal_lengths()
    kind = type(model)
    original = kind.forward
    _, *names_of_arguments = inspect.signature(original).parameters

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args:  # `generate` passes only keywords
            kwargs = {**_by_name(names_of_arguments, args), **kwargs}
        # The original model runs its own hooks, also within the steps.
        caches = [kwargs.pop(name, None) for name in CACHE_NAMES]
        rows = next((each for each in caches if each is not None), None)
        return self._serve_warm_call(model, rows, kwargs)

    names = {"forward": forward, "__module__": PACKAGE, "__doc__": kind.__doc__}
    # Keep the class name, because some code in transformers checks it.
    served_kind = type(kind.__name__, (CompiledGeneration, kind), names)
    served: Any = object.__new__(served_kind)
    vars(served).update(vars(model))
    # With the original's dicts, hooks would run in a step and again around it.
    vars(served).update(
        {name: type(own)() for name, own in vars(model).items() if is_table_of_hooks(name)}
    )
    # All steps have the same compile arguments. The fingerprint reads them from this attribute.
    vars(served)["_serve_warm"] = decoder.dispatcher
    vars(served)["_serve_warm_decoder"] = decoder
    vars(served)["_serve_warm_buffers"] = buffers
    vars(served)["_serve_warm_local"] = threading.local()
    vars(served)["_serve_warm_check"] = check
    vars(served)["_serve_warm_describe_copy"] = describe_copy
    return served


def _by_name(names: Iterable[str], values: Sequence[Any]) -> dict[str, Any]:
    """Return positional arguments by name."""
    return dict(zip(names, values, strict=False))


class _Encoder:
    """The encoder that `generate` calls, which maps input rows to padded states."""

    def __init__(self, encoder: Any, decoder: CachedDecoder) -> None:
        self._encoder, self._decoder = encoder, decoder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def __call__(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        **given: Any,
    ) -> Any:
        for name in ("output_hidden_states", "output_attentions"):
            if given.get(name):
                raise _refused(f"{name}=True", "the compiled encoder returns only hidden states")
        if input_ids is None:
            features = given[self._encoder.main_input_name]
            rows = [self._decoder.encode(row, is_text=False) for row in features]
            lengths = [row.shape[1] for row in rows]
        else:
            texts = _without_padding(input_ids, attention_mask)
            lengths = [len(text) for text in texts]
            bucket = self._decoder.bucket(max(lengths))
            made = (self._decoder.encode(text, is_text=True) for text in texts)
            rows = [_padded(row, bucket) for row in made]
        return EncoderStates(last_hidden_state=torch.cat(rows), lengths=torch.tensor(lengths))


def _prefill(rows: Rows, tokens: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    if tokens.is_floating_point() and tokens.dim() == 2:
        raise GenerationRefused(f"Token ids must be whole numbers, not {tokens.dtype}.")
    prompts = _without_padding(tokens, mask)
    for prompt in prompts:
        rows.decoder.bucket(len(prompt))  # before any slot is taken
    if rows.decoder.needs_equal_lengths and len({*map(len, prompts)}) > 1:
        raise GenerationRefused(
            "This model has one position for all rows, so all prompts of a batch need the same "
            "length, padding excluded."
        )
    rows.begin(len(prompts), tokens.shape[1])
    rows.lengths = [len(prompt) for prompt in prompts]
    made = [rows.decoder.prefill(*pair) for pair in zip(rows.slots, prompts, strict=True)]
    return torch.stack(made)


def _encoder_decoder(rows: Rows, given: dict[str, Any]) -> torch.Tensor:
    tokens = given["decoder_input_ids"]
    if rows.slots:
        return rows.step(_one_column(tokens))
    encoded = given["encoder_outputs"]
    states = encoded[0]
    lengths = _lengths_of(encoded, given.get("attention_mask"))
    columns = tokens.T.tolist()
    if len(tokens) != len(states):
        raise GenerationRefused(
            f"{len(states)} encoder inputs do not match {len(tokens)} sequences."
        )
    rows.begin(len(tokens), 1)
    rows.lengths = [1] * len(tokens)
    made = [
        rows.decoder.begin(slot, _to_bucket(rows, states[row : row + 1], length), length, token)
        for row, (slot, length, token) in enumerate(
            zip(rows.slots, lengths, columns[0], strict=True)
        )
    ]
    logits = torch.stack(made)
    for column in columns[1:]:
        logits = rows.step(column)
    return logits


def _lengths_of(encoded: Any, mask: torch.Tensor | None) -> list[int]:
    """Return the length of each row of the encoder's states, without padding."""
    if isinstance(encoded, EncoderStates) and encoded.lengths is not None:
        found: list[int] = encoded.lengths.tolist()
        return found
    states = encoded[0]
    if mask is None:
        return [states.shape[1]] * len(states)
    if len(mask) != len(states):
        raise GenerationRefused(
            f"An attention_mask of {len(mask)} rows does not match encoder_outputs of "
            f"{len(states)} rows."
        )
    lengths: list[int] = mask.sum(1).tolist()
    for row, length in zip(mask, lengths, strict=True):
        if not bool(row[:length].all()):
            raise _refused("encoder_outputs=", "these outputs must be padded on the right")
    return lengths


def _to_bucket(rows: Rows, states: torch.Tensor, length: int) -> torch.Tensor:
    if not rows.decoder.prompt_lengths:  # the encoder's input has one length
        return states
    return _padded(states, rows.decoder.bucket(length))


def _padded(states: torch.Tensor, length: int) -> torch.Tensor:
    """Return states, padded or cut to a length.

    Masks hide the added positions. If states are cut, only padding is lost.
    """
    return torch.nn.functional.pad(states, (0, 0, 0, length - states.shape[1]))


def _without_padding(tokens: torch.Tensor, mask: torch.Tensor | None) -> list[torch.Tensor]:
    if not tokens.is_floating_point():  # embeddings stay on their device
        tokens = tokens.cpu()
    if mask is None:
        return list(tokens)
    if mask.shape != tokens.shape[:2]:
        raise GenerationRefused(
            f"An attention_mask of shape {tuple(mask.shape)} does not match tokens of shape "
            f"{tuple(tokens.shape[:2])}."
        )
    return [row[keep] for row, keep in zip(tokens, mask.bool().to(tokens.device), strict=True)]


def _one_column(tokens: torch.Tensor) -> list[int]:
    if tokens.shape[1] != 1:
        raise GenerationRefused(
            f"A step takes one token per sequence, but this step got {tokens.shape[1]}."
        )
    found: list[int] = tokens[:, 0].tolist()
    return found


def _check_given(given: Mapping[str, Any]) -> None:
    """Refuse arguments that affect the answer but are not inputs of the steps."""
    for name, value in given.items():
        if name in ("output_hidden_states", "output_attentions") and value:
            raise _refused(f"{name}=True", ONLY_LOGITS)
        is_known = name in INPUTS or name in pictures.PICTURES
        if isinstance(value, (torch.Tensor, list, tuple, Mapping)) and not is_known:
            raise _refused(
                f"{name}=", UNKNOWN.get(name, "the steps take tokens, padding and images")
            )
    mask = given.get("decoder_attention_mask")
    if mask is not None and not bool(mask.all()):
        raise _refused("decoder_attention_mask=", "a decoder's prompts must have no padding")


def _check_positions(
    tokens: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor | None
) -> None:
    """Refuse positions that do not count up from 0 in each row, padding excluded."""
    if positions is None:
        return
    # Qwen2-VL has four rows of positions, which differ at the tokens of an image.
    for axis in positions if positions.dim() == 3 else positions[None]:
        for row in _without_padding(axis.expand(tokens.shape), mask):
            if row.tolist() != list(range(len(row))):
                raise _refused("position_ids=", "the slot determines the position of each token")


def _check_options(config: Any) -> None:
    """Raise if `generate` would use the cache in a way that the compiled steps do not support."""
    beams = getattr(config, "num_beams", 1) or 1
    guidance = getattr(config, "guidance_scale", None)
    cache = getattr(config, "cache_implementation", None)
    for name, why in REFUSED_OPTIONS.items():
        if value := getattr(config, name, None):
            raise _refused(f"{name}={value}", why)
    if beams > 1:
        raise _refused(f"num_beams={beams}", "beam search reorders the cache")
    if getattr(config, "use_cache", True) is False:
        raise _refused("use_cache=False", "the compiled steps always use their cache")
    if cache not in (None, "static", "dynamic"):
        raise _refused(f"cache_implementation={cache!r}", "the compiled steps use a static cache")
    if guidance not in (None, 1, 1.0):
        raise _refused(f"guidance_scale={guidance}", "it calls the model a second time")


ONLY_LOGITS = "the compiled steps return only logits"
REFUSED_OPTIONS = {
    "prompt_lookup_num_tokens": "it checks several tokens in one call",
    "assistant_early_exit": "it runs only the first layers of the model",
    "prefill_chunk_size": "a whole prompt is processed at once, padded to a bucket",
    "output_hidden_states": ONLY_LOGITS,
    "output_attentions": ONLY_LOGITS,
}
"""Options of `generate` that must not be set, each with the reason."""


def _refused(option: str, why: str) -> GenerationRefused:
    return GenerationRefused(f"The compiled steps do not support {option}: {why}.")
