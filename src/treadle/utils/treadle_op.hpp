// Custom ops as classes in C++17, above the C interface; see docs/custom-ops.md.
//
//     struct Cube {
//         static constexpr auto name = "my_cube";
//         static constexpr int inputs = 1, outputs = 1;
//         static void forward(treadle::Inputs in, treadle::Outputs out, treadle::Params) { ... }
//     };
//     TREADLE_REGISTER(Cube)
//
// An op may also have `params`, `infer`, `backward`, `forward_cuda` and `backward_cuda`. What a
// function throws becomes the error that the call ends with.
#ifndef TREADLE_OP_HPP
#define TREADLE_OP_HPP

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "treadle_op.h"

namespace treadle {

using Shape = std::vector<int64_t>;

struct ShapeError : std::runtime_error {
    using std::runtime_error::runtime_error;
};
struct DTypeError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// -- element types ---------------------------------------------------------------------------

// The upper half of a float32.
struct bfloat16 {
    uint16_t bits;
    bfloat16() = default;
    bfloat16(float value) {
        uint32_t word;
        std::memcpy(&word, &value, 4);
        const uint32_t nearest = (word + 0x7fff + (word >> 16 & 1)) >> 16;
        bits = static_cast<uint16_t>(value != value ? word >> 16 | 0x40 : nearest);
    }
    operator float() const {
        const uint32_t word = static_cast<uint32_t>(bits) << 16;
        float value;
        std::memcpy(&value, &word, 4);
        return value;
    }
};

// IEEE 754's binary16, which is rounded to nearest.
struct half {
    uint16_t bits;
    half() = default;
    half(float value) {
        const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
        const float size = std::fabs(value);
        if (value != value) {
            bits = 0x7e00;
        } else if (size >= 65520.0f) {
            bits = sign | 0x7c00;
        } else {
            int exponent = 0;
            std::frexp(size, &exponent);
            exponent = size == 0 || exponent < -13 ? -13 : exponent;
            // A carry out of the fraction raises the exponent, as it should.
            const int fraction = static_cast<int>(std::nearbyint(std::ldexp(size, 11 - exponent)));
            bits = static_cast<uint16_t>(sign | (fraction + ((exponent + 13) << 10)));
        }
    }
    operator float() const {
        const int exponent = bits >> 10 & 31, fraction = bits & 1023;
        float value = INFINITY;
        if (exponent == 31) {
            value = fraction ? NAN : INFINITY;
        } else {
            value = std::ldexp(static_cast<float>(fraction + (exponent ? 1024 : 0)),
                               (exponent ? exponent : 1) - 25);
        }
        return bits & 0x8000 ? -value : value;
    }
};

// The treadle_dtype of a type of C++.
template <class Type>
constexpr int32_t dtype_of() {
    using T = std::remove_cv_t<Type>;
    if constexpr (std::is_same_v<T, bool>) return TREADLE_BOOL;
    else if constexpr (std::is_same_v<T, half>) return TREADLE_FLOAT16;
    else if constexpr (std::is_same_v<T, bfloat16>) return TREADLE_BFLOAT16;
    else if constexpr (std::is_same_v<T, float>) return TREADLE_FLOAT32;
    else if constexpr (std::is_same_v<T, double>) return TREADLE_FLOAT64;
    else {
        static_assert(std::is_integral_v<T> && sizeof(T) <= 8, "no element type of tensors");
        constexpr int power = sizeof(T) == 8 ? 3 : static_cast<int>(sizeof(T) / 2);
        return (std::is_signed_v<T> ? TREADLE_INT8 : TREADLE_UINT8) + power;
    }
}

inline std::string dtype_name(int32_t dtype) {
    static const char *const names[] = {"bool",  "uint8",   "uint16",   "uint32",  "uint64",
                                        "int8",  "int16",   "int32",    "int64",   "float16",
                                        "bfloat16", "float32", "float64"};
    return dtype >= 0 && dtype <= TREADLE_FLOAT64 ? names[dtype] : "no element type";
}

// Calls `work` with a zero of the one of the types that `dtype` is:
//
//     treadle::dispatch<float, double>(in[0].dtype(), [&](auto zero) {
//         using T = decltype(zero);
//         ...
//     });
template <class... Types, class Work>
void dispatch(int32_t dtype, Work &&work) {
    const bool found = ((dtype == dtype_of<Types>() && (work(Types()), true)) || ...);
    if (!found) {
        std::string all;
        ((all += (all.empty() ? "" : ", ") + dtype_name(dtype_of<Types>())), ...);
        throw DTypeError("takes " + all + ", not " + dtype_name(dtype));
    }
}

template <class Work>
void dispatch_floats(int32_t dtype, Work &&work) {
    dispatch<float, double, half, bfloat16>(dtype, std::forward<Work>(work));
}

template <class Work>
void dispatch_numbers(int32_t dtype, Work &&work) {
    dispatch<float, double, half, bfloat16, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t,
             uint32_t, uint64_t>(dtype, std::forward<Work>(work));
}

// -- tensors -----------------------------------------------------------------------------------

// Elements by index, `x(i, j)`; the indices are looked at with -DTREADLE_CHECK_BOUNDS.
template <class T, int N>
class View {
  public:
    View(T *data, const int64_t *shape) : data_(data) {
        int64_t stride = 1;
        for (int axis = N - 1; axis >= 0; stride *= shape[axis--]) {
            shape_[axis] = shape[axis];
            strides_[axis] = stride;
        }
    }
    int64_t dim(int axis) const { return shape_[axis]; }
    template <class... Indices>
    T &operator()(Indices... indices) const {
        static_assert(sizeof...(Indices) == N, "as many indices as axes");
        const int64_t every[] = {static_cast<int64_t>(indices)...};
        int64_t place = 0;
        for (int axis = 0; axis < N; axis++) {
#ifdef TREADLE_CHECK_BOUNDS
            if (every[axis] < 0 || every[axis] >= shape_[axis])
                throw std::out_of_range("index " + std::to_string(every[axis]) + " of axis " +
                                        std::to_string(axis) + ", whose extent is " +
                                        std::to_string(shape_[axis]));
#endif
            place += every[axis] * strides_[axis];
        }
        return data_[place];
    }

  private:
    T *data_;
    int64_t shape_[N], strides_[N];
};

// An operand or result: dense and row-major.
template <class Raw>
class Tensor {
  public:
    Tensor(Raw *raw, const char *role, int number) : raw_(raw), role_(role), number_(number) {}

    int32_t dtype() const { return raw_->dtype; }
    int ndim() const { return raw_->ndim; }
    int64_t size() const { return treadle_size(raw_); }
    Shape shape() const { return Shape(raw_->shape, raw_->shape + raw_->ndim); }
    // In elements.
    Shape strides() const {
        Shape made(raw_->ndim, 1);
        for (int axis = raw_->ndim - 2; axis >= 0; axis--)
            made[axis] = made[axis + 1] * raw_->shape[axis + 1];
        return made;
    }
    // One extent; axes below zero count from the last one.
    int64_t dim(int axis) const {
        const int own = axis < 0 ? axis + ndim() : axis;
        if (own < 0 || own >= ndim())
            throw ShapeError(called() + " has " + std::to_string(ndim()) + " axes, none of number " +
                             std::to_string(axis));
        return raw_->shape[own];
    }
    // The elements; those of operands are const.
    template <class T>
    auto data() const {
        using Element = std::conditional_t<std::is_const_v<Raw>, const T, T>;
        if (dtype() != dtype_of<T>())
            throw DTypeError(called() + " is " + dtype_name(dtype()) + ", not " +
                             dtype_name(dtype_of<T>()));
        return static_cast<Element *>(raw_->data);
    }
    // The elements by their indices.
    template <class T, int N>
    auto view() const {
        using Element = std::conditional_t<std::is_const_v<Raw>, const T, T>;
        if (ndim() != N)
            throw ShapeError(called() + " has " + std::to_string(ndim()) + " axes, not " +
                             std::to_string(N));
        return View<Element, N>(data<T>(), raw_->shape);
    }
    // While types are inferred: what the result is.
    void set(int32_t dtype, const Shape &shape) const {
        static_assert(!std::is_const_v<Raw>, "operands are what they are");
        if (shape.size() > TREADLE_MAX_NDIM)
            throw ShapeError(called() + " would have " + std::to_string(shape.size()) + " axes");
        raw_->dtype = dtype;
        raw_->ndim = static_cast<int32_t>(shape.size());
        std::copy(shape.begin(), shape.end(), raw_->shape);
    }
    // "input 0", for messages.
    std::string called() const { return std::string(role_) + " " + std::to_string(number_); }

  private:
    Raw *raw_;
    const char *role_;
    int number_;
};

using Input = Tensor<const treadle_tensor>;
using Output = Tensor<treadle_tensor>;

template <class Raw>
class Tensors {
  public:
    Tensors(Raw *raw, int count, const char *role) : raw_(raw), count_(count), role_(role) {}
    int size() const { return count_; }
    Tensor<Raw> operator[](int number) const {
        if (number < 0 || number >= count_)
            throw std::out_of_range("there is no " + std::string(role_) + " " +
                                    std::to_string(number));
        return Tensor<Raw>(raw_ + number, role_, number);
    }

  private:
    Raw *raw_;
    int count_;
    const char *role_;
};

using Inputs = Tensors<const treadle_tensor>;
using Outputs = Tensors<treadle_tensor>;

// -- parameters --------------------------------------------------------------------------------

// What a call was made with, by name: `params.get<int>("axis")`.
class Params {
  public:
    Params(const char *text, const double *values) : text_(text), values_(values) {}
    template <class T>
    T get(const std::string &name) const {
        return converted<T>(name, values_[found(name).first]);
    }
    // All values of one whose default is a list.
    template <class T>
    std::vector<T> list(const std::string &name) const {
        const auto [first, count] = found(name);
        std::vector<T> made;
        for (int i = 0; i < count; i++) made.push_back(converted<T>(name, values_[first + i]));
        return made;
    }

  private:
    template <class T>
    static T converted(const std::string &name, double value) {
        if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
            if (static_cast<double>(static_cast<T>(value)) != value)
                throw std::invalid_argument("parameter " + name + " is " + std::to_string(value) +
                                            ", which the type in C++ does not hold");
        return static_cast<T>(value);
    }
    // Where its values begin, and how many they are.
    std::pair<int, int> found(const std::string &name) const {
        int first = 0;
        for (const char *at = text_; *at;) {
            const size_t length = std::strcspn(at, " ");
            const std::string word(at, length), own = word.substr(0, word.find_first_of(":="));
            int count = word.empty() ? 0 : 1;
            for (char c : word) count += c == ',';
            if (count && own == name) return {first, count};
            first += count;
            at += length + (at[length] != 0);
        }
        throw std::invalid_argument("there is no parameter " + name);
    }

    const char *text_;
    const double *values_;
};

// -- ops ---------------------------------------------------------------------------------------

// What the body throws, as the code of an error and its words.
template <class Work>
int guarded(Work &&work) noexcept {
    try {
        work();
        return 0;
    } catch (const ShapeError &error) {
        return treadle_fail(TREADLE_SHAPE_ERROR, "%s", error.what());
    } catch (const DTypeError &error) {
        return treadle_fail(TREADLE_DTYPE_ERROR, "%s", error.what());
    } catch (const std::bad_alloc &) {
        return treadle_fail(TREADLE_MEMORY_ERROR, "it ran out of memory");
    } catch (const std::exception &error) {
        return treadle_fail(TREADLE_OTHER_ERROR, "%s", error.what());
    } catch (...) {
        return treadle_fail(TREADLE_OTHER_ERROR, "it threw what is no std::exception");
    }
}

#define TREADLE_IF_PRESENT(member)                                                             \
    template <class Op, class = void> struct has_##member : std::false_type {};                \
    template <class Op> struct has_##member<Op, std::void_t<decltype(&Op::member)>> : std::true_type {};
TREADLE_IF_PRESENT(params)
TREADLE_IF_PRESENT(infer)
TREADLE_IF_PRESENT(backward)
TREADLE_IF_PRESENT(forward_cuda)
TREADLE_IF_PRESENT(backward_cuda)
#undef TREADLE_IF_PRESENT

// The C functions of an op.
template <class Op>
struct Calls {
    using In = const treadle_tensor *;
    using Out = treadle_tensor *;

    static constexpr const char *text() {
        if constexpr (has_params<Op>::value) return Op::params;
        else return "";
    }
    static Params params(const double *values) { return Params(text(), values); }
    static Inputs in(In raw) { return Inputs(raw, Op::inputs, "input"); }
    static Outputs out(Out raw) { return Outputs(raw, Op::outputs, "output"); }
    static Inputs made(In raw) { return Inputs(raw, Op::outputs, "output"); }
    static Inputs given(In raw) { return Inputs(raw, Op::outputs, "gradient of output"); }
    static Outputs wanted(Out raw) { return Outputs(raw, Op::inputs, "gradient of input"); }

    static int infer(In x, Out y, const double *p) {
        return guarded([&] { Op::infer(in(x), out(y), params(p)); });
    }
    static int forward(In x, Out y, const double *p) {
        return guarded([&] { Op::forward(in(x), out(y), params(p)); });
    }
    static int backward(In dy, In x, In y, Out dx, const double *p) {
        return guarded([&] { Op::backward(given(dy), in(x), made(y), wanted(dx), params(p)); });
    }
    static int forward_cuda(In x, Out y, const double *p, void *stream) {
        return guarded([&] { Op::forward_cuda(in(x), out(y), params(p), stream); });
    }
    static int backward_cuda(In dy, In x, In y, Out dx, const double *p, void *stream) {
        return guarded([&] {
            Op::backward_cuda(given(dy), in(x), made(y), wanted(dx), params(p), stream);
        });
    }

    static treadle_op described() {
        treadle_op made = {};
        made.name = Op::name;
        made.inputs = Op::inputs;
        made.outputs = Op::outputs;
        made.params = text();
        made.forward = forward;
        if constexpr (has_infer<Op>::value) made.infer = infer;
        if constexpr (has_backward<Op>::value) made.backward = backward;
        if constexpr (has_forward_cuda<Op>::value) made.forward_cuda = forward_cuda;
        if constexpr (has_backward_cuda<Op>::value) made.backward_cuda = backward_cuda;
        return made;
    }
};

// All ops of the library, with an empty entry behind them.
inline std::vector<treadle_op> &registered() {
    static std::vector<treadle_op> all(1);
    return all;
}

template <class... Ops>
bool add() {
    auto &all = registered();
    (all.insert(all.end() - 1, Calls<Ops>::described()), ...);
    return true;
}

}  // namespace treadle

#define TREADLE_JOIN_(a, b) a##b
#define TREADLE_JOIN(a, b) TREADLE_JOIN_(a, b)

// Lists classes of ops; may stand in several files of a library, but not beside TREADLE_OPS.
#define TREADLE_REGISTER(...)                                              \
    namespace {                                                            \
    [[maybe_unused]] const bool TREADLE_JOIN(treadle_added_, __COUNTER__) = \
        treadle::add<__VA_ARGS__>();                                       \
    }

TREADLE_EXPORT __attribute__((weak)) int32_t treadle_abi() { return TREADLE_ABI; }
TREADLE_EXPORT __attribute__((weak)) const treadle_op *treadle_ops() {
    return treadle::registered().data();
}

#endif
