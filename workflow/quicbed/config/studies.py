"""config/studies/: what is measured, how long and what is reported, written down before the first run."""

from __future__ import annotations

from pydantic import Field

from quicbed.base.hashing import digest
from quicbed.config.experiments import Scale
from quicbed.config.reading import Model, Name
from quicbed.config.settings import Gate


class StudyPart(Scale):
    """What a study says of one experiment."""

    half_width: float | None = Field(
        None, gt=0, lt=1, description="Instead of that of the experiment's contrast; null: that one."
    )
    claims: list[str] = Field(
        default_factory=list, description="Claims that are judged by the data: ids, tables or papers of config/claims/."
    )
    figures: list[Name] = Field(
        min_length=1, description="Figures that are drawn of it: names of files, without ending."
    )


class LeftOut(Model):
    """A campaign of a study that its data is not taken from."""

    experiment: Name = Field(description="Its experiment.")
    campaign: str = Field(pattern=r"^[0-9a-f]{6,64}$", description="Its id.")
    reason: str = Field(min_length=10, description="Why it is left out.")


class Study(Model):
    """config/studies/<name>.yaml: what is measured, how long and what is reported, written down before the first run.

    It is a scale of its own. Its digest is in every run and part of every campaign's identity, so that runs measured
    by other rules are in other campaigns.
    """

    title: str = Field(description="Title in the report.")
    question: str = Field(description="What it is to answer.")
    seed: int = Field(1, ge=0, description="Instead of that of config.yaml.")
    gate: Gate = Field(default_factory=Gate, description="Instead of that of config.yaml.")
    experiments: dict[Name, StudyPart] = Field(min_length=1, description="How much of which experiment.")
    left_out: list[LeftOut] = Field(
        default_factory=list,
        description="Campaigns of this study that are not in the reference data. Not part of its digest.",
    )

    @property
    def digest(self) -> str:
        """Of all that was decided before measuring."""
        return digest(self.model_dump(mode="json", exclude={"left_out"}))
