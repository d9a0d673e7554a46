"""The former name of ``memfit.predict``, kept for code that imports it."""

from memfit.predict import PhantomSession, Prediction, StepPrediction, predict

__all__ = ["PhantomSession", "Prediction", "StepPrediction", "predict"]
