// The version of Amanda, for preprocessor checks.
#pragma once

#define AMANDA_VERSION_MAJOR 0
#define AMANDA_VERSION_MINOR 1
#define AMANDA_VERSION_PATCH 0
#define AMANDA_VERSION "0.1.0"
