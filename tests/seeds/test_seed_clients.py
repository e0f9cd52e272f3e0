"""The client code of the documents that opsin was ordered from, changed only in URL, model and picture source."""

from __future__ import annotations

import asyncio
import base64
import time
from pathlib import Path

from openai import AsyncOpenAI, OpenAI

from opsin.demo.examples import EXAMPLES, path
from opsin.demo.scenes import draw
from opsin.demo.tasks import caption, describe_change
from opsin.demo.wire import png_url


def encode_image_to_base64(image_path: str) -> str:
    """이미지 파일을 base64로 인코딩"""
    with open(image_path, "rb") as f:  # noqa: PTH123 - the seed's own line
        return base64.b64encode(f.read()).decode("utf-8")


def test_first_seed_two_images_compared(demo_url: str) -> None:
    a, b = (png_url(draw(EXAMPLES[name])) for name in ("before", "after"))
    client = OpenAI(base_url=f"{demo_url}/v1", api_key="local-token")
    response = client.chat.completions.create(
        model="demo",
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "두 image의 차이를 한 문장으로 답해줘."},
                    {"type": "image_url", "image_url": {"url": a}},
                    {"type": "image_url", "image_url": {"url": b}},
                ],
            }
        ],
        max_tokens=64,
    )
    answer = (response.choices[0].message.content or "").strip()
    right = describe_change(EXAMPLES["before"], EXAMPLES["after"], "ko")
    assert answer == right == "파란색 별 2개에서 노란색 별 2개로 색이 바뀌었습니다."


def test_second_seed_text_of_a_picture(demo_url: str) -> None:
    client = OpenAI(api_key="EMPTY", base_url=f"{demo_url}/v1")
    response = client.chat.completions.create(
        model="demo",
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "이 이미지에서 텍스트를 추출해주세요."},
                    {
                        "type": "image_url",
                        "image_url": {
                            "url": f"data:image/png;base64,{encode_image_to_base64(str(path('number_47')))}",
                            "detail": "high",
                        },
                    },
                ],
            }
        ],
        max_tokens=2048,
        temperature=0.1,
    )
    assert (response.choices[0].message.content or "").strip() == "47"


def test_second_seed_total_of_a_receipt(demo_url: str, tmp_path: Path) -> None:
    b64_image = encode_image_to_base64(str(path("receipt")))
    client = OpenAI(api_key="EMPTY", base_url=f"{demo_url}/v1")
    response = client.chat.completions.create(
        model="demo",
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "이 영수증의 총 금액은?"},
                    {
                        "type": "image_url",
                        "image_url": {
                            "url": f"data:image/jpeg;base64,{b64_image}",
                        },
                    },
                ],
            }
        ],
        max_tokens=512,
    )
    assert (response.choices[0].message.content or "").strip() == "32.85"


async def test_second_seed_benchmark_client(demo_url: str) -> None:
    image_urls = [png_url(draw(scene)) for scene in list(EXAMPLES.values())[:3]]
    ttfts, texts = await benchmark_vlm_serving(f"{demo_url}/v1", "demo", image_urls, num_requests=6, concurrency=3)
    assert len(ttfts) == 6
    assert texts[0].strip() == caption(next(iter(EXAMPLES.values())), "ko", split=True)


async def benchmark_vlm_serving(
    base_url: str,
    model: str,
    image_urls: list[str],
    num_requests: int = 100,
    concurrency: int = 10,
) -> tuple[list[float], list[str]]:
    """VLM 서빙 벤치마크: the seed's loop; returns what it printed, and the texts."""

    client = AsyncOpenAI(api_key="EMPTY", base_url=base_url)
    ttfts: list[float] = []
    semaphore = asyncio.Semaphore(concurrency)

    async def single_request(image_url: str) -> str:
        text = ""
        async with semaphore:
            start = time.monotonic()
            first_token_time = None
            stream = await client.chat.completions.create(
                model=model,
                messages=[
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "이 이미지를 설명해주세요."},
                            {"type": "image_url", "image_url": {"url": image_url}},
                        ],
                    }
                ],
                max_tokens=256,
                stream=True,
            )
            async for chunk in stream:
                if first_token_time is None and chunk.choices[0].delta.content:
                    first_token_time = time.monotonic()
                    ttfts.append(first_token_time - start)
                text += chunk.choices[0].delta.content or ""
        return text

    tasks = [single_request(image_urls[i % len(image_urls)]) for i in range(num_requests)]
    texts = await asyncio.gather(*tasks)
    await client.close()
    return ttfts, texts
