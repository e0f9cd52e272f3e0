"""``LLM``: the whole server without HTTP, for scripts and notebooks; called as vLLM's class of that name.

The same application as behind ``opsin serve`` runs on an event loop in a thread of its own: media workers, engine
process, limits and all. Knows no HTTP.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self, cast

from opsin.app import Application, build
from opsin.background import BackgroundLoop, Work
from opsin.core.errors import InvalidRequest, OpsinError
from opsin.core.ids import new_request_id
from opsin.gateway.chat import RawRequest, collect
from opsin.llm.options import to_settings
from opsin.llm.outputs import RequestOutput, to_output
from opsin.llm.progress import loading, progress
from opsin.llm.prompts import Messages, PromptLike, chat_request, read_prompt
from opsin.llm.sampling import SamplingParams
from opsin.media.loader import MediaLoader
from opsin.protocol.request import ChatCompletionRequest
from opsin.settings import Settings

TENANT = "python"
"""All calls of a process share cached features; nobody else is there."""

Request = ChatCompletionRequest | RawRequest
SamplingLike = SamplingParams | Sequence[SamplingParams] | None
"""For all prompts, or one for each; None takes the model's defaults."""


class LLM:
    """A loaded model to ask from Python.

    Works in scripts, in notebooks, and from several threads at once. Leave it with ``close``, or use it as a context
    manager; at the latest it ends with the interpreter, and its processes with it.
    """

    def __init__(self, model: str | os.PathLike[str] | None = None, **options: Any) -> None:
        """Loads ``model``: a folder, a hub id, or ``demo``, which is also the default.

        ``options`` are the flags of ``opsin serve`` as Python names (``max_model_len``, ``dtype``, ``device``,
        ``max_num_seqs``, ``revision``, ``limit_mm_per_prompt``, ``chat_template`` …), most of them vLLM's.
        ``opsin.toml`` and ``OPSIN_`` variables hold here too.

        Raises:
            TypeError: there is no such option.
            ConfigError: a value is wrong or cannot be honoured, or the model cannot be served; names all at once.
            EngineError: the engine did not become ready.
        """
        settings = to_settings(options if model is None else {"model": model, **options})
        self._loader = MediaLoader(settings.media)
        self._places = threading.Semaphore(settings.gateway.max_requests)
        self._background = BackgroundLoop("opsin-llm")
        try:
            with loading(", ".join(table.name for table in settings.models) or settings.model):
                self._application = self._background.run(lambda: _started(settings))
        except BaseException:
            self._background.finish(_nothing)
            self._background.join()
            raise
        self._finalizer = weakref.finalize(self, _end, self._background, self._application)

    def generate(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        sampling_params: SamplingLike = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answers raw prompts, all in flight together, in order.

        A prompt is text, or a dictionary of ``prompt`` (or ``prompt_token_ids``) and
        ``{"multi_modal_data": {"image": …}}`` with one picture or a list: PIL images, bytes, paths, URLs, uint8
        arrays. The text is yours and trusted: no chat template is applied, nothing (no begin token either) is added,
        and special tokens in it are tokens. It holds the model's placeholder, such as ``<image>``, once per picture.

        With pictures and no placeholder at all, the pictures and the text are sent as one turn of a user through the
        model's chat template, which is what ``{"prompt": "Describe this image", "multi_modal_data": …}`` means.

        Raises:
            InvalidRequest: a prompt or picture is wrong; of the first that fails, and the rest is cancelled.
            EngineError: the engine failed, or this LLM is closed.
        """
        several = [prompts] if isinstance(prompts, str | Mapping) else prompts
        inputs = [read_prompt(prompt) for prompt in several]
        sampling = _one_each(sampling_params, len(inputs))
        makers = [partial(one.to_request, how, self._loader) for one, how in zip(inputs, sampling, strict=True)]
        return self._answers(makers, shown=use_tqdm)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingLike = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answers one conversation or a list of them, in order, as ``POST /v1/chat/completions`` would.

        Messages are OpenAI's, with ``image_url`` parts holding URLs; vLLM's
        ``{"type": "image_pil", "image_pil": image}`` takes whatever ``generate`` takes as a picture.

        Raises:
            InvalidRequest, EngineError: as ``generate``.
        """
        single = any(isinstance(one, Mapping) for one in messages)
        several = cast("Sequence[Messages]", [messages] if single else messages)
        sampling = _one_each(sampling_params, len(several))
        makers = [partial(chat_request, one, how, self._loader) for one, how in zip(several, sampling, strict=True)]
        return self._answers(makers, shown=use_tqdm)

    def close(self) -> None:
        """Ends the engine and all workers, and waits for it. Safe to call twice."""
        self._finalizer()
        self._background.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _answers(self, makers: Sequence[Callable[[], Request]], *, shown: bool) -> list[RequestOutput]:
        with progress(len(makers), shown=shown) as advance:
            return self._background.gather(self._works(makers, advance), self._places)

    def _works(
        self, makers: Sequence[Callable[[], Request]], advance: Callable[[], None]
    ) -> Iterator[Work[RequestOutput]]:
        """Pictures are encoded when their turn comes, so that a long list does not fill the memory.

        In the caller's thread, because PIL images are not safe to use in another one at the same time.
        """
        for index, make in enumerate(makers):
            with _noted(index):
                request = make()
            yield partial(self._answer, index, request, advance)

    async def _answer(self, index: int, request: Request, advance: Callable[[], None]) -> RequestOutput:
        request_id = new_request_id()
        answer = self._application.gateway.models.default.chat.answer(request, request_id=request_id, tenant=TENANT)
        with _noted(index):
            collected = await collect(answer)
            output = to_output(request_id, collected.text, collected.done)
        advance()
        return output


async def _started(settings: Settings) -> Application:
    application = build(settings)
    try:
        await application.start()
    except BaseException:
        await application.close()
        raise
    return application


async def _nothing() -> None:
    pass


@contextmanager
def _noted(index: int) -> Generator[None]:
    """Says in an error which prompt it is about."""
    try:
        yield
    except OpsinError as error:
        error.add_note(f"prompt {index}, counted from 0")
        raise


def _end(background: BackgroundLoop, application: Application) -> None:
    """Called by ``close``, by the garbage collector, or by the interpreter's end, which is in the main thread.

    The collector may run in any thread, also in one that the end waits for, so only the main thread waits.
    """
    background.finish(application.close)
    if threading.current_thread() is threading.main_thread():
        background.join()


def _one_each(sampling: SamplingLike, count: int) -> Sequence[SamplingParams]:
    match sampling:
        case None:
            return [SamplingParams()] * count
        case SamplingParams():
            return [sampling] * count
        case _:
            if len(sampling) != count:
                raise InvalidRequest(
                    f"there are {count} prompts and {len(sampling)} sampling_params", param="sampling_params"
                )
            return sampling
