"""How the demo model may be asked: task, language, wordings."""

from __future__ import annotations

QUESTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "shape": {
        "en": (
            "What shape is it?",
            "What shape is this?",
            "Which shape do you see?",
            "What is the shape in the picture?",
            "What shape is in this image?",
            "Name the shape.",
        ),
        "ko": (
            "어떤 도형인가요?",
            "무슨 모양인가요?",
            "이 도형은 무엇인가요?",
            "어떤 모양이 보이나요?",
            "도형의 이름은?",
        ),
    },
    "colour": {
        "en": (
            "What colour is it?",
            "What color is it?",
            "Which colour is the shape?",
            "What is the colour?",
            "What color is the object in this image?",
            "What colour is this?",
            "Name the colour.",
        ),
        "ko": ("무슨 색인가요?", "어떤 색인가요?", "색깔은 무엇인가요?", "이 도형은 무슨 색이에요?", "색은?"),
    },
    "count": {
        "en": (
            "How many are there?",
            "How many shapes are there?",
            "How many objects do you see?",
            "Count the shapes.",
            "How many shapes are in this image?",
            "How many?",
        ),
        "ko": ("몇 개인가요?", "몇 개가 있나요?", "도형이 몇 개 있나요?", "개수는?", "도형은 모두 몇 개예요?"),
    },
    "position": {
        "en": (
            "Where is it?",
            "Where is the shape?",
            "What is its position?",
            "In which part of the picture is it?",
            "Where in the image is the object?",
        ),
        "ko": ("어디에 있나요?", "도형이 어디에 있나요?", "위치는 어디인가요?", "그림의 어느 쪽에 있나요?", "위치는?"),
    },
    "number": {
        "en": (
            "What number is written?",
            "What number is it?",
            "Which number do you see?",
            "Read the number.",
            "What number is in this image?",
            "What does it say?",
        ),
        "ko": (
            "어떤 숫자가 적혀 있나요?",
            "무슨 숫자인가요?",
            "숫자를 읽어 주세요.",
            "숫자는?",
            "이 이미지에서 텍스트를 추출해주세요.",
        ),
    },
    "caption": {
        "en": (
            "Describe the picture.",
            "Describe this image.",
            "Describe this image in detail:",
            "What do you see?",
            "What is in this picture?",
            "What is in this image?",
            "Caption this image.",
        ),
        "ko": (
            "그림을 설명해 주세요.",
            "이 이미지를 설명해주세요.",
            "무엇이 보이나요?",
            "이 그림에 무엇이 있나요?",
            "사진을 설명해줘.",
        ),
    },
    "receipt": {
        "en": (
            "What is the total?",
            "What is the total amount?",
            "How much is the total?",
            "Read the total.",
            "What is the total on this receipt?",
        ),
        "ko": (
            "이 영수증의 총 금액은?",
            "총 금액은 얼마인가요?",
            "합계는 얼마인가요?",
            "총액을 읽어 주세요.",
            "합계는?",
        ),
    },
    "changed": {
        "en": (
            "What changed?",
            "What is different?",
            "What is the difference?",
            "What changed between the two images?",
            "Describe the difference in one sentence.",
        ),
        "ko": (
            "무엇이 바뀌었나요?",
            "무엇이 달라졌나요?",
            "두 image의 차이를 한 문장으로 답해줘.",
            "차이가 무엇인가요?",
            "두 그림의 차이는?",
        ),
    },
    "which": {
        "en": ("Which image shows {what}?", "Which picture shows {what}?", "Say which image shows {what}."),
        "ko": ("어느 이미지에 {what} 있나요?", "무슨 이미지에 {what} 있나요?", "몇 번째 이미지에 {what} 있나요?"),
    },
    "order": {
        "en": (
            "Describe the images in order.",
            "List what each image shows.",
            "What does each image show?",
            "Describe each picture.",
        ),
        "ko": ("이미지를 순서대로 설명해 주세요.", "각 이미지에 무엇이 있나요?", "그림을 차례로 설명해 주세요."),
    },
    "named": {
        "en": ("What is in Image {n}?", "What does Image {n} show?", "Describe Image {n}."),
        "ko": ("Image {n}에는 무엇이 있나요?", "{n}번째 이미지를 설명해 주세요.", "Image {n}은 무엇인가요?"),
    },
    "text_only": {
        "en": (
            "Hello.",
            "Who are you?",
            "What can you do?",
            "Hi!",
            "What is it?",
            "Describe the picture.",
            "What is the total?",
        ),
        "ko": ("안녕하세요.", "누구세요?", "무엇을 할 수 있나요?", "안녕!", "무엇이 보이나요?", "합계는 얼마인가요?"),
    },
}

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You answer questions about pictures.",
    "Answer briefly.",
    "당신은 친절한 조수입니다.",
)
