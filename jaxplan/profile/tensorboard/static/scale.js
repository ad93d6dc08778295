// Scales and their marks.

/** Maps [low, high] to [from, to]; logarithmic where the values span more than `ratio`. */
export function scale(low, high, from, to, logarithmic = false) {
  if (logarithmic && low > 0) {
    const a = Math.log(low),
      span = Math.log(high) - a || 1;
    const at = (value) => from + ((Math.log(value) - a) / span) * (to - from);
    return { at, inverse: (x) => Math.exp(a + ((x - from) / (to - from)) * span), low, high, logarithmic: true };
  }
  const span = high - low || 1;
  return {
    at: (value) => from + ((value - low) / span) * (to - from),
    inverse: (x) => low + ((x - from) / (to - from)) * span,
    low,
    high,
    logarithmic: false,
  };
}

/** Round values between low and high, about `wanted` of them. */
export function ticks({ low, high, logarithmic }, wanted = 6) {
  if (logarithmic && high / low > 20) return powers(low, high, wanted);
  const rough = (high - low || 1) / wanted,
    power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find((factor) => factor * power >= rough) ?? 10);
  const marks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9 && marks.length < 50; i++)
    marks.push(i * step);
  return marks;
}

function powers(low, high, wanted) {
  const decades = Math.log10(high / low),
    every = Math.max(1, Math.ceil(decades / wanted));
  const marks = [];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += every) {
    for (const factor of decades < wanted / 2 ? [1, 2, 5] : [1]) {
      const value = factor * 10 ** power;
      if (value >= low * 0.999 && value <= high * 1.001) marks.push(value);
    }
  }
  return marks;
}
