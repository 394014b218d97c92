// Ops of tests/utils/test_custom_cpp.py.
#include "treadle_op.hpp"

#include <chrono>
#include <cmath>
#include <thread>

using treadle::Inputs;
using treadle::Outputs;
using treadle::Params;

// scale x y, of matrices.
struct MatMulScale {
    static constexpr auto name = "cpp_matmul_scale";
    static constexpr auto params = "scale=1";
    static constexpr int inputs = 2, outputs = 1;

    static void infer(Inputs in, Outputs out, Params) {
        if (in[0].ndim() != 2 || in[1].ndim() != 2 || in[0].dim(1) != in[1].dim(0))
            throw treadle::ShapeError("takes matrices (m, k) and (k, n)");
        if (in[0].dtype() != in[1].dtype()) throw treadle::DTypeError("takes one element type");
        out[0].set(in[0].dtype(), {in[0].dim(0), in[1].dim(-1)});
    }
    static void forward(Inputs in, Outputs out, Params params) {
        const double scale = params.get<double>("scale");
        treadle::dispatch_floats(in[0].dtype(), [&](auto zero) {
            using T = decltype(zero);
            const auto x = in[0].view<T, 2>(), y = in[1].view<T, 2>();
            const auto z = out[0].view<T, 2>();
            for (int64_t i = 0; i < x.dim(0); i++)
                for (int64_t j = 0; j < y.dim(1); j++) {
                    double sum = 0;
                    for (int64_t k = 0; k < x.dim(1); k++) sum += double(x(i, k)) * double(y(k, j));
                    z(i, j) = T(static_cast<float>(1)) * T(sum * scale);
                }
        });
    }
    static void backward(Inputs dz, Inputs in, Inputs, Outputs grads, Params params) {
        const double scale = params.get<double>("scale");
        treadle::dispatch<float, double>(in[0].dtype(), [&](auto zero) {
            using T = decltype(zero);
            const auto x = in[0].view<T, 2>(), y = in[1].view<T, 2>(), g = dz[0].view<T, 2>();
            const auto dx = grads[0].view<T, 2>(), dy = grads[1].view<T, 2>();
            std::fill_n(grads[0].data<T>(), grads[0].size(), T(0));
            std::fill_n(grads[1].data<T>(), grads[1].size(), T(0));
            for (int64_t i = 0; i < x.dim(0); i++)
                for (int64_t j = 0; j < y.dim(1); j++)
                    for (int64_t k = 0; k < x.dim(1); k++) {
                        dx(i, k) += T(g(i, j) * y(k, j) * scale);
                        dy(k, j) += T(g(i, j) * x(i, k) * scale);
                    }
        });
    }
};

// A gated cell: tanh(x) sigmoid(gate), and tanh(x) beside it for the gradient.
struct Gated {
    static constexpr auto name = "cpp_gated";
    static constexpr int inputs = 2, outputs = 2;

    template <class T>
    static T sigmoid(T x) { return 1 / (1 + std::exp(-x)); }
    static void forward(Inputs in, Outputs out, Params) {
        treadle::dispatch<float, double>(in[0].dtype(), [&](auto zero) {
            using T = decltype(zero);
            const T *x = in[0].data<T>(), *gate = in[1].data<T>();
            T *y = out[0].data<T>(), *kept = out[1].data<T>();
            for (int64_t i = 0; i < in[0].size(); i++) {
                kept[i] = std::tanh(x[i]);
                y[i] = kept[i] * sigmoid(gate[i]);
            }
        });
    }
    static void backward(Inputs dy, Inputs in, Inputs out, Outputs dx, Params) {
        treadle::dispatch<float, double>(in[0].dtype(), [&](auto zero) {
            using T = decltype(zero);
            const T *gate = in[1].data<T>(), *kept = out[1].data<T>();
            for (int64_t i = 0; i < in[0].size(); i++) {
                const T s = sigmoid(gate[i]);
                const T d = dy[0].data<T>()[i] * s + dy[1].data<T>()[i];
                dx[0].data<T>()[i] = d * (1 - kept[i] * kept[i]);
                dx[1].data<T>()[i] = dy[0].data<T>()[i] * kept[i] * s * (1 - s);
            }
        });
    }
};

// Which boxes (x0, y0, x1, y1), best first, are kept; a bool each.
struct Keep {
    static constexpr auto name = "cpp_keep";
    static constexpr auto params = "threshold=0.5 most:int=100";
    static constexpr int inputs = 1, outputs = 1;

    static void infer(Inputs in, Outputs out, Params) {
        if (in[0].ndim() != 2 || in[0].dim(1) != 4) throw treadle::ShapeError("takes boxes (n, 4)");
        out[0].set(TREADLE_BOOL, {in[0].dim(0)});
    }
    static void forward(Inputs in, Outputs out, Params params) {
        const auto box = in[0].view<float, 2>();
        const auto area = [&](int64_t i) { return (box(i, 2) - box(i, 0)) * (box(i, 3) - box(i, 1)); };
        bool *keep = out[0].data<bool>();
        int64_t count = 0;
        for (int64_t i = 0; i < box.dim(0); i++) {
            keep[i] = count < params.get<int64_t>("most");
            for (int64_t j = 0; j < i && keep[i]; j++) {
                if (!keep[j]) continue;
                const float w = std::min(box(i, 2), box(j, 2)) - std::max(box(i, 0), box(j, 0));
                const float h = std::min(box(i, 3), box(j, 3)) - std::max(box(i, 1), box(j, 1));
                const float both = std::max(w, 0.0f) * std::max(h, 0.0f);
                keep[i] = both <= params.get<float>("threshold") * (area(i) + area(j) - both);
            }
            count += keep[i];
        }
    }
};

// x to a power that the compiler knows, shifted.
template <int power>
struct Power {
    static constexpr auto name = power == 2 ? "cpp_square" : "cpp_cube";
    static constexpr auto params = "shift:int=0,0 negative:bool=0";
    static constexpr int inputs = 1, outputs = 1;

    static void forward(Inputs in, Outputs out, Params params) {
        const auto shift = params.list<int>("shift");
        const int sign = params.get<bool>("negative") ? -1 : 1;
        treadle::dispatch_numbers(in[0].dtype(), [&](auto zero) {
            using T = decltype(zero);
            const T *x = in[0].data<T>();
            for (int64_t i = 0; i < in[0].size(); i++) {
                T y = T(1);
                for (int k = 0; k < power; k++) y = T(y * T(x[i] + T(shift[0])));
                out[0].data<T>()[i] = T(y * T(sign) + T(shift[1]));
            }
        });
    }
};

// Fails in the way of its number.
struct Fails {
    static constexpr auto name = "cpp_fails";
    static constexpr auto params = "how:int=0";
    static constexpr int inputs = 1, outputs = 1;

    static void infer(Inputs in, Outputs out, Params params) {
        const int64_t large = params.get<int>("how") == 6 ? int64_t(1) << 60 : 1;
        out[0].set(in[0].dtype(), {large});
        if (params.get<int>("how") == 7) out[0].set(99, {-1});
        if (params.get<int>("how") == 8) out[0].set(in[0].dtype(), treadle::Shape(9, 1));
    }
    static void forward(Inputs in, Outputs out, Params params) {
        switch (params.get<int>("how")) {
            case 1: throw std::runtime_error("the matrix is \"singular\", 100%s sure");
            case 2: throw 5;
            case 3: throw std::bad_alloc();
            case 4: in[3].size(); break;
            case 5: out[0].data<int32_t>(); break;
            case 9: out[0].view<float, 1>()(1) = 0; break;
            case 10: params.get<double>("which"); break;
            case 11: in[0].view<float, 2>(); break;
            case 12: in[0].dim(-7); break;
            case 13: *(out[0].data<float>() + 1) = 1; break;
            case 14: std::this_thread::sleep_for(std::chrono::milliseconds(300)); break;
            case 15: break;
        }
        if (params.get<int>("how") != 15) out[0].data<float>()[0] = in[0].data<float>()[0];
    }
};

TREADLE_REGISTER(MatMulScale, Gated, Keep, Power<2>)
TREADLE_REGISTER(Power<3>)
TREADLE_REGISTER(Fails)
