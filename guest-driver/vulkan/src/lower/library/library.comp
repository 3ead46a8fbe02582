#version 450
#extension GL_EXT_samplerless_texture_functions : require
#extension GL_GOOGLE_include_directive : require
// What kernels do with images that are texel buffers. The driver takes single functions of the compiled module into those of programs
// (`library.rs`); records are those of `records.rs`. `generate` compiles it.
layout(set = 0, binding = 0) uniform Records { uvec4 rows[1024]; };

const uint BEYOND = 0xffffffffu;
const uint LAST_LEVEL = 15u;
const uint IDENTITY = 0x03020100u;
const uint CUBE = 4u;
const uint PARTS = 7u;
const uint SRGB = 16u;

// Flags of samplers
const uint LINEAR_NEAR = 1u;
const uint LINEAR_FAR = 2u;
const uint LINEAR_LEVELS = 4u;
const uint IN_TEXELS = 8u;

uvec3 extent(const uint record, const uint lod) {
    uvec3 sides = rows[record].xyz;
    uint level = min(lod, LAST_LEVEL);
    return max(uvec3(sides.x >> level, sides.y >> level, sides.z >> level * rows[record + 1].z), uvec3(1));
}

// An index of an array that has as many elements
uint within(const uint at, const uint count) { return min(at, count - 1); }

uint levels(const uint record) { return rows[record].w; }

// Of a texel at `at`, of which there is one, with slices of these sides
uint place(const uint record, const uvec3 at, const uvec2 sides) {
    uint mask = rows[record + 1].x;
    return at.z * (sides.x * sides.y + mask & ~mask) + at.y * sides.x + at.x;
}

uint index(const uint record, const uvec3 at) {
    uvec3 sides = rows[record].xyz;
    return all(lessThan(at, sides)) ? place(record, at, sides.xy) : BEYOND;
}

uint index_of_level(const uint record, const uvec3 at, const uint lod) {
    uvec3 sides = extent(record, lod);
    if (lod >= min(rows[record].w, LAST_LEVEL + 1) || any(greaterThanEqual(at, sides))) return BEYOND;
    return rows[record + 2 + (lod >> 2)][lod & 3] + place(record, at, sides.xy);
}

// The level that neighbouring coordinates ask for that are as far apart as these
float level_of(const uint record, const uint dimensions, const vec3 x, const vec3 y) {
    vec3 sides = vec3(rows[record].xyz);
    if (dimensions < 3) sides.z = 0;
    if (dimensions < 2) sides.y = 0;
    return log2(max(length(x * sides), length(y * sides)));
}

int wrapped(const int at, const int side, const uint mode) {
    int size = max(side, 1);
    int both = mode == 1 ? 2 * size : size;
    // What is left of a division rounds to zero
    int rest = at - at / both * both;
    if (rest < 0) rest += both;
    switch (mode) {
    case 0: return rest;
    case 1: return rest < size ? rest : both - 1 - rest;
    case 3: return clamp(at, -1, size);
    case 4: return min(at < 0 ? -(1 + at) : at, size - 1);
    default: return clamp(at, 0, size - 1);
    }
}

// A direction as a face has it: across, down, and away from the centre
vec3 sided(const uint face, const vec3 of) {
    float way = (face & 1) == 0 ? 1 : -1;
    if (face < 2) return vec3(-way * of.z, -of.y, way * of.x);
    if (face < 4) return vec3(of.x, way * of.z, way * of.y);
    return vec3(way * of.x, -of.y, way * of.z);
}

// Face in z, and the place in it from 0 to 1
vec3 face_of(const vec3 to) {
    vec3 far = abs(to);
    uint face;
    if (far.z >= far.x && far.z >= far.y) face = to.z < 0 ? 5 : 4;
    else if (far.y >= far.x) face = to.y < 0 ? 3 : 2;
    else face = to.x < 0 ? 1 : 0;
    vec3 side = sided(face, to);
    return vec3(0.5 * side.xy / side.z + 0.5, face);
}

// How fast the place in a face moves where the direction does
vec2 moved(const vec3 side, const vec3 by) { return 0.5 * (by.xy * side.z - side.xy * by.z) / (side.z * side.z); }

// The level of a cube that neighbouring directions ask for
float level_of_cube(const uint record, const vec4 at, const vec3 x, const vec3 y) {
    uint face = uint(face_of(at.xyz).z);
    vec3 side = sided(face, at.xyz);
    float far = max(length(moved(side, sided(face, x))), length(moved(side, sided(face, y))));
    return log2(far * float(rows[record].x));
}

// From the centre to a place in a face, which may lie beyond its edges
vec3 towards(const vec2 at, const uint face) {
    vec2 side = 2 * at - 1;
    switch (face) {
    case 0: return vec3(1, -side.y, -side.x);
    case 1: return vec3(-1, -side.y, side.x);
    case 2: return vec3(side.x, 1, side.y);
    case 3: return vec3(side.x, -1, -side.y);
    case 4: return vec3(side.x, -side.y, 1);
    default: return vec3(-side.x, -side.y, -1);
    }
}

// The texel that a tap finds, by its index in a level: beyond all, where it is the border
uint tap(const uint record, const uint flags, const uint dimensions, ivec3 at, int slice, const uint lod) {
    ivec3 sides = ivec3(extent(record, lod));
    if (dimensions == CUBE) {
        if (any(lessThan(at.xy, ivec2(0))) || any(greaterThanEqual(at.xy, sides.xy))) {
            vec3 next = face_of(towards((vec2(at.xy) + 0.5) / vec2(sides.xy), uint(slice) % 6));
            at.xy = clamp(ivec2(floor(next.xy * vec2(sides.xy))), ivec2(0), sides.xy - 1);
            slice += int(next.z) - slice % 6;
        }
        at.z = slice;
    } else {
        at.x = wrapped(at.x, sides.x, flags >> 8 & 7);
        at.y = dimensions < 2 ? 0 : wrapped(at.y, sides.y, flags >> 11 & 7);
        at.z = dimensions < 3 ? slice : wrapped(at.z, sides.z, flags >> 14 & 7);
    }
    return index_of_level(record, uvec3(at), lod);
}

// Where a coordinate lies in a level, in texels, and in which slice of it
vec4 located(const uint record, const uint flags, const uint dimensions, const vec4 at, const uint lod) {
    float slices = float(rows[record].z);
    float slice = clamp(roundEven(at.w), 0, max(slices - 1, 0));
    vec3 place = at.xyz;
    if (dimensions == CUBE) {
        place = face_of(at.xyz);
        slice = clamp(roundEven(at.w), 0, max(floor(slices / 6) - 1, 0)) * 6 + place.z;
        place.z = 0;
    }
    if ((flags & IN_TEXELS) == 0) place *= vec3(extent(record, lod));
    return vec4(place, slice);
}

// Of sampling: the level, from the one that is asked for
float bounded(const uint record, const uint sampled, const float lod) {
    uvec4 head = rows[sampled];
    return clamp(lod + uintBitsToFloat(head.y), uintBitsToFloat(head.z), uintBitsToFloat(head.w));
}

// The same within the levels that there are
float there(const uint record, const uint flags, const float lod) {
    return (flags & IN_TEXELS) != 0 ? 0 : clamp(lod, 0, float(max(rows[record].w, 1u) - 1));
}

// Colours of sRGB as the light that they stand for
vec4 linear(const uint record, const vec4 texel) {
    if ((rows[record + 1].w & SRGB) == 0) return texel;
    // The power within a twelfth of a step of 8 bits, for less: CPUs that run lanes together compute it of every texel, to throw it away
    vec3 x = texel.rgb;
    vec3 power = 0.0010585 + x * (0.02904625 + x * (0.54574016 + x * (0.59446851 + x * (x * 0.05300517 - 0.22331859))));
    return vec4(mix(min(power, 1), x / 12.92, lessThanEqual(x, vec3(0.04045))), texel.a);
}

#define BUFFER textureBuffer
#define TEXEL vec4
#define PART float
#define BITS uintBitsToFloat
#define NAME(name) f_##name
#define DECODED(record, texel) linear(record, texel)
#include "typed.glsl"
#undef BUFFER
#undef TEXEL
#undef PART
#undef BITS
#undef NAME
#undef DECODED

#define BUFFER itextureBuffer
#define TEXEL ivec4
#define PART int
#define BITS ivec4
#define NAME(name) i_##name
#define DECODED(record, texel) texel
#include "typed.glsl"
#undef BUFFER
#undef TEXEL
#undef PART
#undef BITS
#undef NAME
#undef DECODED

#define BUFFER utextureBuffer
#define TEXEL uvec4
#define PART uint
#define BITS uvec4
#define NAME(name) u_##name
#define DECODED(record, texel) texel
#include "typed.glsl"

// How much one of eight neighbours counts, `far` from the first; of a cube also for one that is not there, where three faces meet
float weight_of(const uint dimensions, const uint i, const vec3 far, const ivec3 first, const ivec2 sides) {
    vec3 near = mix(1 - far, far, bvec3(i & 1, i >> 1 & 1, i >> 2));
    if (dimensions != CUBE) return near.x * (dimensions > 1 ? near.y : 1) * (dimensions > 2 ? near.z : 1);
    bvec2 isBefore = lessThan(first.xy, ivec2(0));
    bvec2 isBehind = greaterThanEqual(first.xy + 1, sides);
    bool isCorner = (isBefore.x || isBehind.x) && (isBefore.y || isBehind.y);
    uint corner = uint(isBehind.x) + 2 * uint(isBehind.y);
    vec2 missing = mix(1 - far.xy, far.xy, isBehind);
    float own = near.x * near.y;
    return !isCorner ? own : i == corner ? 0 : own + missing.x * missing.y / 3;
}

// All neighbours in one or two levels: one loop around one fetch, since drivers put functions into each other
vec4 f_sample(textureBuffer image, const uint record, const uint sampled, const uint dimensions, const vec4 at,
              const float lod, const ivec3 offset) {
    uint flags = rows[sampled].x;
    float wished = bounded(record, sampled, lod);
    float level = there(record, flags, wished);
    bool isLinear = (flags & (wished <= 0 ? LINEAR_NEAR : LINEAR_FAR)) != 0;
    bool isBetween = (flags & LINEAR_LEVELS) != 0;
    float first = isBetween ? floor(level) : floor(level + 0.5);
    float rest = isBetween ? level - first : 0;
    uint taps = !isLinear ? 1u : dimensions == CUBE ? 4u : 1u << dimensions;
    uint all = rest > 0 ? 2 * taps : taps;
    vec4 sum = vec4(0);
    for (uint i = 0; i < all; i++) {
        bool isNext = i >= taps;
        uint from = uint(first) + uint(isNext);
        uint neighbour = isNext ? i - taps : i;
        vec4 place = located(record, flags, dimensions, at, from);
        ivec2 sides = ivec2(extent(record, from).xy);
        vec3 corner = floor(isLinear ? place.xyz - 0.5 : place.xyz);
        ivec3 start = ivec3(corner);
        // The far edge of a face belongs to it.
        if (dimensions == CUBE && !isLinear) start.xy = min(start.xy, sides - 1);
        float weight = isLinear ? weight_of(dimensions, neighbour, place.xyz - 0.5 - corner, start, sides) : 1;
        weight *= isNext ? rest : 1 - rest;
        if (weight > 0) {
            ivec3 to = start + offset + ivec3(neighbour & 1, neighbour >> 1 & 1, neighbour >> 2);
            sum += weight * f_at(image, record, sampled, flags, dimensions, to, int(place.w), from);
        }
    }
    return f_swizzle(record, sum);
}

void main() {}
