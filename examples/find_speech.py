"""Find speech in sound: a public ONNX model hears 32 ms at a time and remembers what came before.

python examples/find_speech.py [SOUND.wav] [--voice formants] [--rate 8000] [--picture PICTURE.png]

The model is silero-vad's, as the package of that name ships it; the folder is where it is
installed, or where `make zoo` puts it. Without a sound (WAV, 16 bits, 8,000 or 16,000 numbers a
second) one is made: three sentences by a synthesizer, in noise, between a melody, clicks and
hum that the model shall not take for speech. The synthesizer is espeak-ng where it is installed,
otherwise vowels and consonants of our own. Needs treadle[onnx,vision].
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
import wave
from pathlib import Path
from typing import Any

import cv2
import numpy as np

import treadle as mge
from treadle.interop.onnx import load

Sound = np.ndarray[Any, Any]
Stretch = tuple[float, float]
MODEL = Path(__file__).resolve().parents[1] / "build/zoo/silero_vad/data/silero_vad.onnx"
SENTENCES = (
    "Treadle reads its graphs aloud.",
    "Somebody speaks between the noises.",
    "And here it ends.",
)
VOWELS = {
    "a": (730, 1090, 2440),
    "e": (530, 1840, 2480),
    "i": (270, 2290, 3010),
    "o": (570, 840, 2410),
    "u": (300, 870, 2240),
    "m": (250, 1000, 2200),
    "r": (420, 1300, 1600),
}
"""Resonances of a mouth, in hertz."""
NOISES = {"s": (4500, 0.10), "k": (2500, 0.05), "f": (3500, 0.05), "t": (3800, 0.06)}
"""Hissing sounds: around which frequency, and for how many seconds."""
SPOKEN = ("tere-dil riits its krafs alaut", "sambadi spiks bitwin tha noises", "and hir it ents")


class Listener:
    """The model, compiled once, and what it keeps from one stretch of sound to the next.

    Attributes:
        step: numbers that it hears at a time.
    """

    def __init__(self, path: Path, rate: int) -> None:
        network = load(path)
        network.eval()
        self.step, self.before = rate // 125 * 4, rate // 250
        self.rate = mge.tensor(np.array(rate, np.int64), dtype="int64")
        self.hear = mge.jit.compile(lambda x, state, rate: network(x, state, rate))

    def chances(self, sound: Sound) -> Sound:
        """How likely each step of a sound is speech."""
        steps = -(-len(sound) // self.step)
        padded = np.zeros(self.before + steps * self.step, np.float32)
        padded[self.before : self.before + len(sound)] = sound
        state, chances = mge.tensor(np.zeros((2, 1, 128), np.float32)), []
        for i in range(0, steps * self.step, self.step):
            window = padded[None, i : i + self.before + self.step]
            chance, state = self.hear(mge.tensor(window), state, self.rate)
            chances.append(chance.numpy()[0, 0])
        return np.array(chances)


def stretches(
    chances: Sound, seconds: float, least: float = 0.25, pause: float = 0.3
) -> list[Stretch]:
    """From where to where somebody speaks, in seconds.

    Speech begins at a chance of 0.5 and ends below 0.35, so that it does not flicker. Shorter
    pauses belong to it, and what is shorter altogether is none.
    """
    found: list[list[float]] = []
    speaking = False
    for i, chance in enumerate([*chances, 0.0]):
        if not speaking and chance >= 0.5:
            if found and i * seconds - found[-1][1] < pause:
                found[-1][1] = i * seconds
            else:
                found.append([i * seconds, i * seconds])
            speaking = True
        elif speaking and chance < 0.35:
            found[-1][1] = i * seconds
            speaking = False
    return [(a, b) for a, b in found if b - a >= least]


def made(rate: int, voice: str) -> tuple[Sound, list[Stretch]]:
    """Ten seconds or so of noise, music, clicks and speech, and where the speech is."""
    rng = np.random.default_rng(0)
    parts, truth, at = [], [], 0
    for i, other in enumerate((melody(rate), clicks(rate, rng), hum(rate))):
        spoken = espeak(SENTENCES[i], rate) if voice == "espeak-ng" else formants(SPOKEN[i], rate)
        loud = np.flatnonzero(np.abs(spoken) > 0.02)
        at += len(other) + rate // 2
        truth.append(((at + loud[0]) / rate, (at + loud[-1]) / rate))
        at += len(spoken) + rate // 2
        parts += [other, np.zeros(rate // 2), spoken, np.zeros(rate // 2)]
    sound = np.concatenate(parts)
    return (sound + 0.003 * rng.standard_normal(len(sound))).astype(np.float32), truth


def melody(rate: int) -> Sound:
    """Four notes that fade."""
    t = np.arange(rate // 3) / rate
    notes = [np.sin(2 * np.pi * f * t) * np.exp(-5 * t) for f in (440, 554, 659, 880)]
    return 0.3 * np.concatenate(notes)


def clicks(rate: int, rng: np.random.Generator) -> Sound:
    """Ten knocks of noise in a second and a half."""
    sound = np.zeros(rate * 3 // 2)
    for start in range(0, len(sound) - rate // 50, rate * 3 // 20):
        sound[start : start + rate // 50] = rng.standard_normal(rate // 50) * 0.4
    return sound


def hum(rate: int) -> Sound:
    """A machine that hums for a second."""
    t = np.arange(rate) / rate
    return sum(0.15 / k * np.sin(2 * np.pi * 50 * k * t) for k in (1, 2, 3, 5))


def espeak(text: str, rate: int) -> Sound:
    """A sentence, spoken by espeak-ng."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "spoken.wav"
        subprocess.run(["espeak-ng", "-s", "150", "-w", str(file), text], check=True)
        sound, its_rate = opened(file)
    times = np.arange(0, len(sound) / its_rate, 1 / rate)
    # What it says above half the rate would fold back: a mean over a step takes it out.
    wide = max(round(its_rate / rate), 1)
    smooth = np.convolve(sound, np.ones(wide) / wide, "same")
    return np.interp(times, np.arange(len(sound)) / its_rate, smooth)


def formants(text: str, rate: int) -> Sound:
    """Letters, spoken: each pulse of the vocal cords makes the mouth ring at its resonances."""
    rng = np.random.default_rng(len(text))
    letters = [c for c in text if c in VOWELS or c in NOISES or c in " -"]
    sound = np.zeros(round(rate * (0.14 * len(letters) + 0.5)))
    ring = np.arange(rate // 25) / rate
    at, mouth = 0.05, np.array(VOWELS["a"], float)
    for letter in letters:
        if letter in VOWELS:
            end = at + rng.uniform(0.09, 0.15)
            while at < end:
                # The mouth moves on by a fifth with each pulse; the pitch sinks and wavers.
                mouth += 0.2 * (np.array(VOWELS[letter]) - mouth)
                tones = np.sin(2 * np.pi * mouth[:, None] * ring)
                fades = np.exp(-np.pi * np.array([[80], [100], [140]]) * ring)
                start = round(at * rate)
                sound[start : start + len(ring)] += 0.12 * np.array([1, 0.6, 0.3]) @ (tones * fades)
                at += 1 / (125 - 4 * at + 6 * np.sin(9 * at) + rng.normal(0, 1))
        elif letter in NOISES:
            center, seconds = NOISES[letter]
            t = np.arange(round(seconds * rate)) / rate
            shape = np.sin(np.pi * t / seconds) * np.sin(2 * np.pi * min(center, rate / 3) * t)
            start = round(at * rate)
            sound[start : start + len(t)] += 0.1 * shape * rng.standard_normal(len(t))
            at += seconds
        else:
            at += 0.06
    return sound[: round((at + 0.05) * rate)]


def opened(path: Path) -> tuple[Sound, int]:
    """The first channel of a WAV file with numbers of 16 bits, from -1 to 1, and its rate."""
    with wave.open(str(path)) as file:
        if file.getsampwidth() != 2:
            sys.exit(f"{path} has {8 * file.getsampwidth()} bits a number; 16 are read")
        numbers = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        return numbers[:: file.getnchannels()] / 32768, file.getframerate()


def saved(path: Path, sound: Sound, rate: int) -> None:
    """Write a WAV file, to listen to."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(sound, -1, 1) * 32767).astype("<i2").tobytes())


def drawn(
    sound: Sound, rate: int, chances: Sound, found: list[Stretch], truth: list[Stretch]
) -> Sound:
    """A picture: the sound, below it the chance of speech; found in green, true ones in blue."""
    width, across = 1200, 1200 * rate / len(sound)
    image = np.full((360, width, 3), 255, np.uint8)
    for listed, top, bottom, color in (
        (found, 0, 330, (205, 240, 205)),
        (truth, 338, 352, (200, 120, 40)),
    ):
        for a, b in listed:
            corners = (round(a * across), top), (round(b * across), bottom)
            cv2.rectangle(image, *corners, color, -1)
    for x in range(width):
        part = sound[len(sound) * x // width : len(sound) * (x + 1) // width]
        high, low = (round(110 - 100 * float(v)) for v in (part.max(), part.min()))
        cv2.line(image, (x, high), (x, low), (90, 90, 90), 1)
    points = np.stack([np.arange(len(chances)) * width / len(chances), 325 - 100 * chances], 1)
    cv2.polylines(image, [points.round().astype(np.int32)], False, (30, 30, 200), 2, cv2.LINE_AA)
    return image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sound", nargs="?", type=Path)
    parser.add_argument("--model", type=Path, default=MODEL)
    best = "espeak-ng" if shutil.which("espeak-ng") else "formants"
    parser.add_argument("--voice", choices=("espeak-ng", "formants"), default=best)
    parser.add_argument("--rate", type=int, choices=(8000, 16000), default=16000)
    parser.add_argument("--picture", type=Path, help="draw what was found")
    parser.add_argument("--save", type=Path, help="write the sound that was made")
    chosen = parser.parse_args()
    if not chosen.model.exists():
        sys.exit(f"no model {chosen.model}: run `make zoo`, or pass --model")
    if chosen.sound is None:
        rate, (sound, truth) = chosen.rate, made(chosen.rate, chosen.voice)
    else:
        sound, rate = opened(chosen.sound)
        truth = []
        if rate not in (8000, 16000):
            sys.exit(f"{chosen.sound} has {rate} numbers a second; 8000 or 16000 are read")
    if chosen.save:
        saved(chosen.save, sound, rate)
    listener = Listener(chosen.model, rate)
    listener.chances(sound[: listener.step])  # compiles
    began = time.perf_counter()
    chances = listener.chances(sound)
    taken = time.perf_counter() - began
    found = stretches(chances, listener.step / rate)
    for a, b in truth:
        print(f"said   {a:6.2f} to {b:6.2f} s")
    for a, b in found:
        print(f"found  {a:6.2f} to {b:6.2f} s")
    print(f"{len(sound) / rate:.1f} s of sound heard {len(sound) / rate / taken:.0f} times as fast")
    if chosen.picture:
        cv2.imwrite(str(chosen.picture), drawn(sound, rate, chances, found, truth))


if __name__ == "__main__":
    main()
