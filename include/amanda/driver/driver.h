// All headers that the author of a driver needs.
#pragma once

#include "amanda/driver/backend.h"
#include "amanda/driver/backward.h"
#include "amanda/driver/engine.h"
#include "amanda/driver/graph.h"
#include "amanda/driver/known_call.h"
#include "amanda/driver/probe.h"
#include "amanda/error.h"
