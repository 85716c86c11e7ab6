"""Every error dagfisher raises, each with the layer's name and the remedy in its sentence."""

from __future__ import annotations


class DagFisherError(Exception):
    """The base of every error that dagfisher raises on purpose."""


class DagFisherWarning(UserWarning):
    """Something is allowed and probably not what was meant; the sentence says what to do."""


class DeclarationError(DagFisherError, ValueError):
    """A module cannot be the DAG layer it was declared to be."""


class SettingError(DagFisherError, ValueError):
    """A setting of the optimizer is outside its range."""


class ParameterTypeError(SettingError, TypeError):
    """Something among the params of an optimizer is no tensor."""


class SampleWeightError(DagFisherError, ValueError):
    """Sample weights do not fit the forward pass that they belong to."""


class MissingStatisticsError(DagFisherError, RuntimeError):
    """A declared layer has a gradient but no captured forward pass."""


class ShapeError(DagFisherError, ValueError):
    """A tensor's shape does not fit its layer."""


class GradientError(DagFisherError, RuntimeError):
    """A gradient is of a kind that this optimizer cannot apply; no parameter has moved."""


class NonFiniteError(DagFisherError, ArithmeticError):
    """A gradient or a statistic holds an infinity or a NaN; no parameter has moved."""


class SingularBlockError(DagFisherError, ArithmeticError):
    """A Fisher block cannot be inverted with the damping given; no parameter has moved."""


class CheckpointError(DagFisherError, ValueError):
    """A saved optimizer state does not belong to this optimizer."""


class ProcessError(DagFisherError, RuntimeError):
    """The processes of a group differ, or one of them has ended or raised; no parameter has moved."""


class MissingExtraError(DagFisherError, ImportError):
    """An optional package is not installed; the sentence says which extra of dagfisher brings it."""
