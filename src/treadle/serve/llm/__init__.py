"""Language models over HTTP, in the words of OpenAI's interface.

`LanguageApplication` is an ASGI application of `Speaker`s, which continue text, and `Reader`s,
which make vectors of it; `treadle.serve.server.run` runs it.
"""

from treadle.serve.llm.application import LanguageApplication
from treadle.serve.llm.readers import Reader
from treadle.serve.llm.speakers import Speaker

__all__ = ["LanguageApplication", "Reader", "Speaker"]
