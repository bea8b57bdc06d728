--[[
Open a tenant under a term. Second step of hello, after open.lua.

KEYS[1] meta
ARGV[1] term
ARGV[2] incarnation the caller learned under this term, or ''
ARGV[3] incarnation recorded in the registry's own key (open.lua), or '' when the tenant is new
ARGV[4] incarnation to write when the tenant is created now
Returns the incarnation.
Errors: TERMMISMATCH term <held> | incarnation <held> | lost (known or recorded, but its data is gone)
]]
if redis.call('EXISTS', KEYS[1]) == 0 then
  if ARGV[2] ~= '' or ARGV[3] ~= '' then
    return refuse('TERMMISMATCH lost')
  end
  redis.call('HSET', KEYS[1], 'term', ARGV[1], 'incarnation', ARGV[4], 'sequence', '0', 'events', '0')
  return ARGV[4]
end
local refused = admit(KEYS[1])
if refused then
  return refused
end
return redis.call('HGET', KEYS[1], 'incarnation')
