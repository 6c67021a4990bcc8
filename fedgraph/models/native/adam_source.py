"""A step of Adam in C++, for the sources that include it.

It is a Python file because Flower's app bundle carries no other kind of source.
"""

ADAM = r"""
// --------------------------------------------------------------------------------------------------------------- Adam

#include <cmath>
#include <cstdint>

namespace {

using Size = int64_t;

struct AdamSettings {
    Size decoupled;        // whether weight decay goes past the moments, as in AdamW
    double first, second;  // betas
    double rate;           // learning rate
    double epsilon, decay;
};

// One model's step: what all of its numbers share.
class Adam {
  public:
    // steps: how many the moments have seen, this one included. Powers in double: 1 - 0.999^t loses digits in float.
    Adam(const AdamSettings& settings, double rate, double steps)
        : mean_part_(static_cast<float>(1.0 - settings.first)), second_(static_cast<float>(settings.second)),
          square_part_(static_cast<float>(1.0 - settings.second)),
          mean_scale_(static_cast<float>(rate / (1.0 - std::pow(settings.first, steps)))),
          root_scale_(static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(settings.second, steps)))),
          epsilon_(static_cast<float>(settings.epsilon)),
          coupled_(settings.decoupled ? 0.0f : static_cast<float>(settings.decay)),
          kept_(settings.decoupled ? static_cast<float>(1.0 - rate * settings.decay) : 1.0f) {}

    void move(float& parameter, float gradient, float& mean, float& square) const {
        gradient += coupled_ * parameter;
        const float m = mean + mean_part_ * (gradient - mean);
        const float v = second_ * square + square_part_ * gradient * gradient;
        mean = m;
        square = v;
        parameter = kept_ * parameter - mean_scale_ * m / (std::sqrt(v) * root_scale_ + epsilon_);
    }

  private:
    float mean_part_, second_, square_part_, mean_scale_, root_scale_, epsilon_, coupled_, kept_;
};

}  // namespace
"""
