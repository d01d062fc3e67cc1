"""guidance, two generations in one dialogue. It asks its model for streams alone."""

import os
import sys

from guidance import assistant, gen, models, user


def run(question: str) -> str:
    lm = models.OpenAI(os.environ["MODEL"], echo=False, base_url=os.environ["MODEL_URL"])
    with user():
        lm += question
    with assistant():
        lm += gen("numbers")
    a, b = lm["numbers"].split("+")
    with user():
        lm += f"The sum is {int(a) + int(b)}."
    with assistant():
        lm += gen("answer")
    return lm["answer"]


if __name__ == "__main__":
    print(run(sys.argv[1]))
