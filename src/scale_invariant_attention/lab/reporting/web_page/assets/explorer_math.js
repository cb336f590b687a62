// The mathematics of the explorer, as in the package's theory: gain, bias, and expected sums over ranges
// of distances [start, stop), each in constant time.
"use strict";

const explorerMath = (() => {
  // The sum of 1/(t + shift): terms near zero one by one, the others by the series of the digamma function,
  // subtracted term by term so that narrow ranges far away keep their digits.
  function reciprocalSum(start, stop, shift) {
    let total = 0;
    while (start < stop && start + shift < 16) {
      total += 1 / (start + shift);
      start += 1;
    }
    const low = start + shift;
    const width = stop - start;
    const [near, far] = [1 / low, 1 / (low + width)];
    const coefficients = [1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132];
    const series = coefficients.map((it, i) => it * (near ** (2 * i + 2) - far ** (2 * i + 2)));
    return total + Math.log1p(width / low) + (near - far) / 2 + series.reduce((a, b) => a + b);
  }

  function plain() {
    return constantGain(1);
  }

  function logN(length, scale = 0.4) {
    return constantGain(scale * Math.log(length));
  }

  // Without a bias, all distances are alike.
  function constantGain(gain) {
    const weight = Math.exp(gain ** 2 / 2);
    return {
      gain: () => gain,
      bias: () => 0,
      mass: (start, stop) => weight * (stop - start),
      negentropy: (start, stop) => gain ** 2 * weight * (stop - start),
    };
  }

  function alibi(slope) {
    // Sums of x^t and of t x^t with x = e^-slope.
    const powers = (start, stop) =>
      Math.exp(-slope * start) * Math.expm1(-slope * (stop - start)) / Math.expm1(-slope);
    const weighted = (start, stop) => {
      const count = stop - start;
      const within = (powers(0, count) - 1 - (count - 1) * Math.exp(-slope * count)) / -Math.expm1(-slope);
      return start * powers(start, stop) + Math.exp(-slope * start) * within;
    };
    const local = Math.exp(0.5);
    return {
      gain: () => 1,
      bias: (distance) => 0 - slope * distance,
      mass: (start, stop) => local * powers(start, stop),
      negentropy: (start, stop) => local * (powers(start, stop) - slope * weighted(start, stop)),
    };
  }

  function scaleInvariant(tau) {
    const growth = (distance) => 2 * Math.log1p(distance / tau);
    const mass = (start, stop) => Math.exp(0.5) * tau * reciprocalSum(start, stop, tau);
    // alpha = beta: the two expectations are the same at every distance.
    return {
      gain: (distance) => Math.sqrt(1 + growth(distance)),
      bias: (distance) => 0 - growth(distance),
      mass,
      negentropy: mass,
    };
  }

  function schedules({ tau, length, slope }) {
    return {
      Plain: plain(),
      LogN: logN(length),
      ALiBi: alibi(slope),
      "Scale-invariant": scaleInvariant(tau),
    };
  }

  // E[Z[0, recent)] / E[Z[0, length)].
  function recentShare(schedule, recent, length) {
    return schedule.mass(0, Math.min(recent, length)) / schedule.mass(0, length);
  }

  // log E[Z] - E[N] / E[Z] over [0, length).
  function entropy(schedule, length) {
    const mass = schedule.mass(0, length);
    return Math.log(mass) - schedule.negentropy(0, length) / mass;
  }

  // The distances below a length in decades: 0 to 9, 10 to 99 and so on, the last one perhaps cut short.
  function decades(length) {
    const found = [[0, Math.min(10, length)]];
    for (let start = 10; start < length; start *= 10) found.push([start, Math.min(10 * start, length)]);
    return found;
  }

  function decadeShares(schedule, length) {
    const whole = schedule.mass(0, length);
    return decades(length).map(([start, stop]) => schedule.mass(start, stop) / whole);
  }

  return { schedules, recentShare, entropy, decades, decadeShares };
})();
