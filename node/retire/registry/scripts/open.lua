--[[
Is the registry the one of this term? First step of hello, on the registry's own key (another slot).

KEYS[1] registry: hash {term, incarnation, "tenant:<name>" -> incarnation of that tenant}
ARGV[1] term of the caller
ARGV[2] tenant
ARGV[3] '1': the caller knows that no registry was ever opened, so an empty one may be opened now
ARGV[4] incarnation to write when it is opened now
Returns the tenant's recorded incarnation, '' when it was never recorded.
Errors: NEEDREGISTER registry (empty and ARGV[3] is not '1'), TERMMISMATCH term <held>
]]
local held = redis.call('HGET', KEYS[1], 'term')
if not held then
  if ARGV[3] ~= '1' then
    return refuse('NEEDREGISTER registry')
  end
  redis.call('HSET', KEYS[1], 'term', ARGV[1], 'incarnation', ARGV[4])
elseif held ~= ARGV[1] then
  return refuse('TERMMISMATCH term ' .. held)
end
return redis.call('HGET', KEYS[1], 'tenant:' .. ARGV[2]) or ''
