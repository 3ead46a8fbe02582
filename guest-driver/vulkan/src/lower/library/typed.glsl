// Of texels of one type.

// What is stored, as it is read
TEXEL NAME(stored)(const uint record, const TEXEL texel) { return DECODED(record, texel); }

TEXEL NAME(swizzle)(const uint record, const TEXEL texel) {
    uint order = rows[record + 1].y;
    if (order == IDENTITY) return texel;
    TEXEL swapped;
    for (uint i = 0; i < 4; i++) {
        uint which = order >> 8 * i & 0xff;
        swapped[i] = which == 4 ? PART(0) : which == 5 ? PART(1) : texel[which & 3];
    }
    return swapped;
}

// A texel that was fetched, as a view shows it
TEXEL NAME(shown)(const uint record, const TEXEL texel) { return NAME(swizzle)(record, NAME(stored)(record, texel)); }

// A border has no components that its image has not.
TEXEL NAME(border)(const uint record, const uint sampled) {
    uint parts = rows[record + 1].w & PARTS;
    TEXEL colour = BITS(rows[sampled + 1]);
    return TEXEL(colour.x, parts > 1 ? colour.y : PART(0), parts > 2 ? colour.z : PART(0), parts > 3 ? colour.w : PART(1));
}

TEXEL NAME(at)(BUFFER image, const uint record, const uint sampled, const uint flags,
               const uint dimensions, const ivec3 at, const int slice, const uint lod) {
    uint index = tap(record, flags, dimensions, at, slice, lod);
    if (index == BEYOND) return NAME(border)(record, sampled);
    return NAME(stored)(record, texelFetch(image, int(index)));
}

TEXEL NAME(nearest)(BUFFER image, const uint record, const uint sampled, const uint flags,
                    const uint dimensions, const vec4 at, const uint lod, const ivec3 offset) {
    vec4 place = located(record, flags, dimensions, at, lod);
    ivec3 texel = ivec3(floor(place.xyz));
    // The far edge of a face belongs to it.
    if (dimensions == CUBE) texel = min(texel, ivec3(extent(record, lod)) - 1);
    return NAME(at)(image, record, sampled, flags, dimensions, texel + offset, int(place.w), lod);
}

TEXEL NAME(only)(BUFFER image, const uint record, const uint sampled, const uint dimensions, const vec4 at, const float lod, const ivec3 offset) {
    uint flags = rows[sampled].x;
    float level = there(record, flags, bounded(record, sampled, lod));
    uint near = uint(floor(level + 0.5));
    return NAME(swizzle)(record, NAME(nearest)(image, record, sampled, flags, dimensions, at, near, offset));
}

TEXEL NAME(gather)(BUFFER image, const uint record, const uint sampled, const uint dimensions, const vec4 at, const uint part, const ivec3 offset) {
    uint flags = rows[sampled].x;
    vec4 place = located(record, flags, dimensions, at, 0);
    ivec3 first = ivec3(floor(place.xyz - 0.5)) + offset;
    TEXEL found;
    // Four: a bound that drivers do not know, so that they keep the loop
    uint count = min(rows[record].w + 3, 4u);
    for (uint i = 0; i < count; i++) {
        // Lower left, lower right, upper right, upper left
        ivec3 to = first + ivec3(i == 1 || i == 2, i < 2, 0);
        TEXEL texel = NAME(at)(image, record, sampled, flags, dimensions, to, int(place.w), 0);
        found[i] = NAME(swizzle)(record, texel)[part];
    }
    return found;
}
