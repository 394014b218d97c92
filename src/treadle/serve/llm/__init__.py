"""Language models over HTTP, in the words of OpenAI's interface.

`LanguageApplication` is an ASGI application of `Speaker`s, which continue text, and `ModelReader`s,
which make vectors of it; `treadle.serve.server.run` runs it.
"""

from treadle.serve.llm.application import LanguageApplication
from treadle.serve.llm.readers import ModelReader
from treadle.serve.llm.speakers import Speaker

__all__ = ["LanguageApplication", "ModelReader", "Speaker"]
