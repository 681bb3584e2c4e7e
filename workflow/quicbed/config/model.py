"""Configuration: models of every file under config/, read strictly, under one name.

Every key is declared with a description. From these models come the validation, the JSON schemas in workflow/schemas/
and the key tables in docs/configuration.md, so the three cannot disagree. Unknown keys are errors.
"""

# ruff: noqa: F403

from quicbed.config.experiments import *
from quicbed.config.libraries import *
from quicbed.config.project import *
from quicbed.config.reading import *
from quicbed.config.settings import *
from quicbed.config.studies import *
from quicbed.config.testbeds import *
from quicbed.config.variants import *
